#include "tests/support/program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>

namespace test_support {

namespace {

using Environment = std::vector<std::pair<std::string, std::string>>;
// `fabricctl tune --quick` takes 8 s of a machine that has something else to do.
constexpr auto kTimeout = std::chrono::minutes(5);

struct Pipe {
    Pipe() {
        if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    }
    int ends[2];
};

// The child's part, made of what was prepared before fork(): it allocates nothing but setenv().
[[noreturn]] void become(char* const* words, const Environment& environment, int out, int error) {
    for (const auto& [name, value] : environment) {
        if (value.empty()) {
            ::unsetenv(name.c_str());
        } else {
            ::setenv(name.c_str(), value.c_str(), 1);
        }
    }
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(error, STDERR_FILENO);
    ::execv(words[0], words);
    ::_exit(127);
}

/// Reads both until both have ended; false when the time has passed.
bool read_both(int out, int error, Output& output) {
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    pollfd waits[] = {{out, POLLIN, 0}, {error, POLLIN, 0}};
    std::string* texts[] = {&output.out, &output.error};
    while (waits[0].fd >= 0 || waits[1].fd >= 0) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
            deadline - std::chrono::steady_clock::now());
        if (left.count() <= 0) return false;
        ::poll(waits, 2, static_cast<int>(left.count()));
        for (int i = 0; i < 2; ++i) {
            if (waits[i].fd < 0 || waits[i].revents == 0) continue;
            char bytes[4096];
            const ssize_t got = ::read(waits[i].fd, bytes, sizeof bytes);
            if (got > 0) texts[i]->append(bytes, static_cast<std::size_t>(got));
            if (got == 0) waits[i].fd = -1;  // poll() passes over it
        }
    }
    return true;
}

}  // namespace

Output run_program(const std::vector<std::string>& words, const Environment& environment) {
    std::vector<char*> pointers;
    for (const auto& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
    pointers.push_back(nullptr);
    Pipe out;
    Pipe error;
    const pid_t pid = ::fork();
    if (pid == 0) become(pointers.data(), environment, out.ends[1], error.ends[1]);
    if (pid < 0) return {};  // kill(-1) below would mean all processes
    ::close(out.ends[1]);
    ::close(error.ends[1]);
    Output output;
    const bool ended = read_both(out.ends[0], error.ends[0], output);
    if (!ended) ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
    if (ended) output.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ::close(out.ends[0]);
    ::close(error.ends[0]);
    return output;
}

}  // namespace test_support
