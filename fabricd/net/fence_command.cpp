#include "fabricd/net/fence_command.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <string>
#include <vector>

#include "libfabricshm/base/log.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;

namespace {

constexpr int kTimedOut = 124;  // as timeout(1) has it
constexpr int kEnded = 128 + SIGTERM;
constexpr std::size_t kMaxLines = 16, kMaxLetters = 200;
constexpr std::size_t kMaxOutput = kMaxLines * kMaxLetters;  // what follows is read, and not kept

// The group's watch: when the daemon is gone, however it went, its end of the pipe is closed, and
// the command must not go on by itself: the next daemon starts it again. A signal at the parent's
// death would end the shell alone, and not what it started. The group's number is the shell's.
constexpr int kAliveFd = 9;
constexpr const char* kWatched =
    "(trap '' TERM; exec >/dev/null 2>&1; read -r gone <&9; kill -TERM -$$; sleep 2; "
    "kill -KILL -$$) & exec 9<&-; exec /bin/sh -c \"$1\"";

std::vector<std::string> environment_of(const FenceKey& key) {
    std::vector<std::string> variables;
    for (char** variable = environ; *variable != nullptr; ++variable) {
        variables.emplace_back(*variable);
    }
    variables.push_back("FABRIC_FENCE_HOST=" + key.first);
    variables.push_back("FABRIC_FENCE_INCARNATION=" + std::to_string(key.second));
    return variables;
}

// The daemon blocks its signals in all threads, and a child inherits that: a command that can't be
// ended.
void set_attributes(posix_spawnattr_t& attributes) {
    sigset_t none, usual;
    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &usual);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    ::posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
}

}  // namespace

std::vector<std::string> log_lines(std::string_view output) {
    std::vector<std::string> lines;
    bool is_cut = output.size() > kMaxOutput;
    while (!output.empty()) {
        const std::size_t end = std::min(output.find('\n'), output.size());
        std::string line(output.substr(0, std::min(end, kMaxLetters)));
        std::ranges::replace_if(
            line, [](char letter) { return letter < 0x20 || letter > 0x7e; }, '?');
        is_cut = is_cut || line.size() < end || lines.size() == kMaxLines;
        if (!line.empty() && lines.size() < kMaxLines) lines.push_back(std::move(line));
        output.remove_prefix(std::min(end + 1, output.size()));
    }
    if (is_cut) {
        if (lines.size() == kMaxLines) lines.pop_back();
        lines.emplace_back("(it wrote more)");
    }
    return lines;
}

FenceCommand::~FenceCommand() {
    if (pid_ < 0) return;
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
}

fabricshm::Result<void> FenceCommand::start(const FenceKey& key) {
    constexpr const char* kStep = "run fence command";
    if (pid_ >= 0) return Error{Errc::kBusy, 0, kStep};
    const std::string shell = "/bin/sh", option = "-c", name = "fence";
    std::vector<std::string> variables = environment_of(key);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    char* const arguments[] = {const_cast<char*>(shell.c_str()),
                               const_cast<char*>(option.c_str()),
                               const_cast<char*>(kWatched),
                               const_cast<char*>(name.c_str()),
                               command_.data(),
                               nullptr};
    int alive[2], output[2];
    if (::pipe2(alive, O_CLOEXEC) != 0) return fabricshm::error_from_errno(errno, kStep);
    alive_ = fabricshm::Fd(alive[1]);
    const fabricshm::Fd watched(alive[0]);
    if (::pipe2(output, O_CLOEXEC) != 0) return fabricshm::error_from_errno(errno, kStep);
    output_ = fabricshm::Fd(output[0]);
    const fabricshm::Fd written(output[1]);
    ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_adddup2(&files, written.get(), 1);
    ::posix_spawn_file_actions_adddup2(&files, written.get(), 2);
    ::posix_spawn_file_actions_adddup2(&files, watched.get(), kAliveFd);
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    set_attributes(attributes);
    const int failed =
        ::posix_spawn(&pid_, shell.c_str(), &files, &attributes, arguments, environment.data());
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&files);
    if (failed != 0) {
        pid_ = -1;
        return fabricshm::error_from_errno(failed, kStep);
    }
    is_ending_ = false;
    said_.clear();
    end_ = BootClock::now() + timeout_;
    return {};
}

void FenceCommand::end(BootTime now) {
    if (pid_ < 0 || is_ending_) return;
    is_ending_ = true;
    end_ = std::min(end_, now + kEndGrace);
    ::kill(-pid_, SIGTERM);
}

// All of it, so that the command never waits for a reader; the beginning is kept.
void FenceCommand::read_output() {
    char bytes[4096];
    ssize_t got = 0;
    while ((got = ::read(output_.get(), bytes, sizeof bytes)) > 0) {
        const auto room = kMaxOutput + 1 - said_.size();
        said_.append(bytes, std::min(static_cast<std::size_t>(got), room));
    }
}

std::optional<int> FenceCommand::poll(BootTime now) {
    if (pid_ < 0) return std::nullopt;
    read_output();
    const bool is_late = now >= end_;
    siginfo_t ended{};
    // It stays a zombie for the moment: its number must not become another process's before the
    // group is ended.
    if (!is_late &&
        (::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == 0)) {
        return std::nullopt;
    }
    // With what it left in the background: its own end is the answer.
    ::kill(-pid_, SIGKILL);
    int status = 0;
    const pid_t reaped = ::waitpid(pid_, &status, 0);
    pid_ = -1;
    read_output();
    output_.reset();
    alive_.reset();
    for (const std::string& line : log_lines(said_)) {
        fabricshm::log(fabricshm::LogLevel::kWarning, "fence command: %s", line.c_str());
    }
    if (is_ending_) return kEnded;
    if (is_late) return kTimedOut;
    if (reaped < 0) return 1;  // another part of the program took its status
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace fabricd
