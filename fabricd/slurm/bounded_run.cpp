#include "fabricd/slurm/bounded_run.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/process.hpp"
#include "libfabricshm/os/unix_socket.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::error_from_errno;
using fabricshm::Fd;
using fabricshm::Result;
using fabricshm::TimePoint;

namespace {

constexpr const char* kStep = "run a program";
constexpr std::size_t kOutputBytes = 4096;
constexpr auto kAfterKill = std::chrono::seconds(1);

/// What posix_spawn() needs, freed with it.
struct Plan {
    Plan() {
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawnattr_init(&attributes);
    }
    ~Plan() {
        ::posix_spawn_file_actions_destroy(&actions);
        ::posix_spawnattr_destroy(&attributes);
    }
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
};

Result<pid_t> spawn(const std::vector<std::string>& words, int output) {
    Plan plan;
    ::posix_spawn_file_actions_addopen(&plan.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&plan.actions, output, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&plan.actions, output, STDERR_FILENO);
    // slurmstepd has descriptors of its job's output, and not all of them close by themselves.
    ::posix_spawn_file_actions_addclosefrom_np(&plan.actions, STDERR_FILENO + 1);
    sigset_t none, all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setsigmask(&plan.attributes, &none);
    ::posix_spawnattr_setsigdefault(&plan.attributes, &all);
    // A group of its own, so that what it starts is killed with it.
    ::posix_spawnattr_setpgroup(&plan.attributes, 0);
    ::posix_spawnattr_setflags(
        &plan.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    // Root runs it, and the environment may be the user's.
    char path[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
    char* environment[] = {path, nullptr};
    pid_t pid = -1;
    const int failure = ::posix_spawn(&pid, words.front().c_str(), &plan.actions, &plan.attributes,
                                      arguments.data(), environment);
    if (failure != 0) return error_from_errno(failure, kStep);
    return pid;
}

// What is there now; what is above the limit is read and dropped, so that the program goes on.
void drain(const Fd& pipe, std::string& output) {
    char bytes[1024];
    for (;;) {
        const ssize_t count = ::read(pipe.get(), bytes, sizeof bytes);
        if (count <= 0) return;
        const auto room = kOutputBytes - output.size();
        output.append(bytes, std::min(room, static_cast<std::size_t>(count)));
    }
}

/// True once it has ended.
bool follow(const Fd& pidfd, const Fd& pipe, TimePoint deadline, std::string& output) {
    bool open = true;
    for (;;) {
        drain(pipe, output);
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
        if (left.count() <= 0) return !pidfd_alive(pidfd);
        // A pipe whose other end is closed would be ready for ever.
        pollfd both[2] = {{pidfd.get(), POLLIN, 0}, {open ? pipe.get() : -1, POLLIN, 0}};
        if (::poll(both, 2, static_cast<int>(left.count())) < 0 && errno != EINTR) return false;
        if (both[0].revents != 0) break;
        open = open && (both[1].revents & POLLHUP) == 0;
    }
    drain(pipe, output);
    return true;
}

int code_of(int status) {
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

Result<Ended> run_bounded(const std::vector<std::string>& words, fabricshm::Duration timeout) {
    const TimePoint deadline = fabricshm::deadline_after(Clock::now(), timeout);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return error_from_errno(errno, kStep);
    const Fd read_end(ends[0]);
    Fd write_end(ends[1]);
    FABRIC_TRY(const pid_t pid, spawn(words, write_end.get()));
    write_end.reset();
    const auto pidfd = fabricshm::open_pidfd(pid);
    Ended ended;
    const bool in_time = pidfd.ok() && follow(*pidfd, read_end, deadline, ended.output);
    if (!in_time) {
        ::kill(-pid, SIGKILL);
        // One that hangs in the kernel is left behind: its parent, slurmstepd, ends with the step.
        if (pidfd.ok()) {
            (void)fabricshm::wait_ready(pidfd->get(), POLLIN, Clock::now() + kAfterKill, kStep);
        }
    }
    int status = 0;
    const pid_t reaped = ::waitpid(pid, &status, in_time ? 0 : WNOHANG);
    if (!in_time) return Error{Errc::kTimeout, 0, kStep};
    if (reaped != pid) return error_from_errno(errno, kStep);
    ended.code = code_of(status);
    return ended;
}

}  // namespace fabricd
