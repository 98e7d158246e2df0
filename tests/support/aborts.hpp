// What a function that aborts says before: for tests of checks.

#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>

namespace test_support {

/// Runs `body` in a forked process. What that wrote to stderr when it ended by SIGABRT; "" when it
/// ended otherwise.
inline std::string aborts_with(const std::function<void()>& body) {
    int ends[2];
    if (::pipe(ends) != 0) return {};
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(ends[1], STDERR_FILENO);
        ::signal(SIGABRT, SIG_DFL);  // the test's own handler would report a crash of the test
        body();
        ::_exit(0);
    }
    ::close(ends[1]);
    std::string text;
    char part[512];
    for (ssize_t got = 0; (got = ::read(ends[0], part, sizeof part)) > 0;) {
        text.append(part, static_cast<std::size_t>(got));
    }
    ::close(ends[0]);
    int status = 0;
    const bool ended = child > 0 && ::waitpid(child, &status, 0) == child;
    return ended && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? text : std::string();
}

}  // namespace test_support
