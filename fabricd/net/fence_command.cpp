#include "fabricd/net/fence_command.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <string>
#include <vector>

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;

namespace {

constexpr int kTimedOut = 124;  // as timeout(1) has it

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

FenceCommand::~FenceCommand() {
    if (pid_ < 0) return;
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
}

fabricshm::Result<void> FenceCommand::start(const FenceKey& key) {
    if (pid_ >= 0) return Error{Errc::kBusy, 0, "run fence command"};
    const std::string shell = "/bin/sh", option = "-c";
    std::vector<std::string> variables = environment_of(key);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    char* const arguments[] = {const_cast<char*>(shell.c_str()), const_cast<char*>(option.c_str()),
                               command_.data(), nullptr};
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    set_attributes(attributes);
    const int failed =
        ::posix_spawn(&pid_, shell.c_str(), nullptr, &attributes, arguments, environment.data());
    ::posix_spawnattr_destroy(&attributes);
    if (failed != 0) {
        pid_ = -1;
        return fabricshm::error_from_errno(failed, "run fence command");
    }
    end_ = BootClock::now() + timeout_;
    return {};
}

std::optional<int> FenceCommand::poll(BootTime now) {
    if (pid_ < 0) return std::nullopt;
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
    if (is_late) return kTimedOut;
    if (reaped < 0) return 1;  // another part of the program took its status
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace fabricd
