#include "fabricd/jobs/child.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::error_from_errno;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

constexpr const char* kStart = "start a process";

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
    pointers.push_back(nullptr);
    return pointers;
}

/// Above 3, so that placing one does not overwrite another.
int moved_up(int fd) {
    return fd < 0 ? fd : ::fcntl(fd, F_DUPFD_CLOEXEC, 4);
}

[[noreturn]] void report_failure(int report) {
    const int why = errno;
    (void)!::write(report, &why, sizeof why);
    ::_exit(127);
}

// Between fork() and exec(): the parent may have threads, so only what is async-signal-safe.
[[noreturn]] void become(const ChildSpec& spec, char* const* arguments, char* const* environment,
                         pid_t parent, int failed) {
    sigset_t none;
    ::sigemptyset(&none);
    for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::setsid();
    if (spec.parent_death != 0) {
        ::prctl(PR_SET_PDEATHSIG, spec.parent_death);
        // It ended before: the signal does not come any more.
        if (::getppid() != parent) ::_exit(127);
    }
    const int report = moved_up(failed);
    const int input = spec.input >= 0 ? moved_up(spec.input) : ::open("/dev/null", O_RDONLY);
    const int output = moved_up(spec.output);
    const int error = moved_up(spec.error);
    const int extra = moved_up(spec.extra);
    ::dup2(input, STDIN_FILENO);
    if (output >= 0) ::dup2(output, STDOUT_FILENO);
    if (error >= 0) ::dup2(error, STDERR_FILENO);
    if (extra >= 0) ::dup2(extra, 3);
    if (!spec.directory.empty() && ::chdir(spec.directory.c_str()) != 0) report_failure(report);
    ::close_range(extra >= 0 ? 4 : 3, ~0U, CLOSE_RANGE_CLOEXEC);
    ::execve(arguments[0], arguments, environment);
    report_failure(report);
}

/// The pids of this process's children; empty where the kernel does not list them.
std::vector<pid_t> children() {
    std::vector<pid_t> found;
    DIR* tasks = ::opendir("/proc/self/task");
    if (tasks == nullptr) return found;
    while (const dirent* task = ::readdir(tasks)) {
        char path[300];
        std::snprintf(path, sizeof path, "/proc/self/task/%s/children", task->d_name);
        FILE* file = std::fopen(path, "re");
        if (file == nullptr) continue;
        int pid = 0;
        while (std::fscanf(file, "%d", &pid) == 1) found.push_back(pid);
        std::fclose(file);
    }
    ::closedir(tasks);
    return found;
}

}  // namespace

Result<Child> start_child(const ChildSpec& spec) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return error_from_errno(errno, kStart);
    const Fd read_end(ends[0]);
    Fd write_end(ends[1]);
    const auto arguments = pointers_to(spec.arguments);
    const auto environment = pointers_to(spec.environment);
    // A signal that came to the child before its handlers are gone would run the parent's.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid == 0) {
        become(spec, arguments.data(), environment.data(), parent, write_end.get());
    }
    const int failure = errno;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) return error_from_errno(failure, kStart);
    write_end.reset();
    int why = 0;
    // The end of the pipe is exec(): it closes the child's end. A program on a mount that hangs is
    // waited for by the kernel, uninterruptibly, as any parent would.
    ssize_t count = 0;
    while ((count = ::read(read_end.get(), &why, sizeof why)) < 0 && errno == EINTR) {
    }
    Child child{pid, {}};
    auto pidfd = fabricshm::open_pidfd(pid);
    if (count == 0 && pidfd.ok()) {
        child.pidfd = std::move(pidfd).value();
        return child;
    }
    ::kill(pid, SIGKILL);
    reap(child);
    if (count > 0) return error_from_errno(why, kStart);
    if (!pidfd.ok()) return pidfd.error();
    return error_from_errno(EIO, kStart);
}

void signal_group(pid_t leader, int number) noexcept {
    if (leader > 0) ::kill(-leader, number);
}

int reap(const Child& child) noexcept {
    int status = 0;
    while (::waitpid(child.pid, &status, 0) < 0) {
        if (errno != EINTR) return 255;
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void adopt_orphans() noexcept {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

void kill_strays(const std::vector<pid_t>& kept) noexcept {
    const auto deadline = Clock::now() + std::chrono::seconds(1);
    // Each round kills one generation: the children of what was killed come to this process.
    while (Clock::now() < deadline) {
        bool found = false;
        for (const pid_t pid : children()) {
            if (std::find(kept.begin(), kept.end(), pid) != kept.end()) continue;
            found = true;
            ::kill(pid, SIGKILL);
            int status = 0;
            // Bounded: a process in an uninterruptible call does not end.
            ::waitpid(pid, &status, WNOHANG);
        }
        if (!found) return;
        ::usleep(1000);
    }
}

}  // namespace fabricd
