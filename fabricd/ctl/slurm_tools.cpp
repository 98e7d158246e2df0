#include "fabricd/ctl/slurm_tools.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "fabricd/jobs/child.hpp"
#include "fabricd/jobs/program_path.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::Fd;
using fabricshm::Result;
using fabricshm::TimePoint;

namespace {

constexpr const char* kRunTool = "run a program of Slurm";
constexpr std::size_t kMaxToolOutput = 4 << 20;

struct OutputPipe {
    Fd read_end;
    Fd write_end;
};

Result<OutputPipe> make_output_pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        return fabricshm::error_from_errno(errno, kRunTool);
    }
    // The program's end blocks, as it expects.
    ::fcntl(ends[1], F_SETFL, 0);
    return OutputPipe{Fd(ends[0]), Fd(ends[1])};
}

/// Takes what is there; false at its end.
bool take_output(int fd, std::string& text) {
    char bytes[16384];
    for (;;) {
        const ssize_t count = ::read(fd, bytes, sizeof bytes);
        if (count < 0) return errno == EAGAIN || errno == EINTR;
        if (count == 0) return false;
        const std::size_t room = kMaxToolOutput - std::min(kMaxToolOutput, text.size());
        text.append(bytes, std::min(room, static_cast<std::size_t>(count)));
    }
}

/// Until both outputs and the process have ended; false after the deadline.
bool follow_tool(const Child& child, const std::array<OutputPipe, 2>& pipes, TimePoint deadline,
                 ToolResult& result) {
    std::array<pollfd, 3> waits = {{{pipes[0].read_end.get(), POLLIN, 0},
                                    {pipes[1].read_end.get(), POLLIN, 0},
                                    {child.pidfd.get(), POLLIN, 0}}};
    for (;;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
        if (left.count() <= 0) return false;
        if (::poll(waits.data(), waits.size(), static_cast<int>(left.count())) <= 0) continue;
        if (!take_output(pipes[0].read_end.get(), result.output)) waits[0].fd = -1;
        if (!take_output(pipes[1].read_end.get(), result.error)) waits[1].fd = -1;
        // What it has left running may keep the outputs open: its own end counts.
        if (waits[2].revents != 0) return true;
    }
}

}  // namespace

std::string ToolResult::complaint() const {
    std::string line = error.substr(0, error.find('\n'));
    for (const char* word : {": error: ", ": fatal: "}) {
        const std::size_t at = line.find(word);
        if (at != std::string::npos) line = line.substr(at + 9);
    }
    return line.empty() ? "exit code " + std::to_string(code) : line;
}

Result<ToolResult> run_slurm_tool(std::vector<std::string> words, fabricshm::Duration limit) {
    const std::string name = words.front();
    words.front() = find_program(name);
    if (words.front().empty()) {
        return explain({Errc::kNotFound, 0, kRunTool},
                       "there is no %s in PATH: Slurm's commands are not installed here",
                       name.c_str());
    }
    std::array<OutputPipe, 2> pipes;
    for (OutputPipe& one : pipes) {
        FABRIC_TRY(one, make_output_pipe());
    }
    ChildSpec spec;
    spec.arguments = std::move(words);
    for (char** one = environ; *one != nullptr; ++one) spec.environment.emplace_back(*one);
    spec.output = pipes[0].write_end.get();
    spec.error = pipes[1].write_end.get();
    spec.parent_death = SIGKILL;
    FABRIC_TRY(const Child child, start_child(spec));
    for (OutputPipe& one : pipes) one.write_end.reset();
    ToolResult result;
    if (!follow_tool(child, pipes, Clock::now() + limit, result)) {
        signal_group(child.pid, SIGKILL);
        reap(child);
        return explain({Errc::kTimeout, 0, kRunTool}, "%s did not answer within %s", name.c_str(),
                       fabricshm::format_duration(limit).c_str());
    }
    result.code = reap(child);
    return result;
}

}  // namespace fabricd
