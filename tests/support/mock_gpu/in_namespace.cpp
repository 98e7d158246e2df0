// Runs a program in a pid namespace of its own, as a container does: with its own /proc, and as
// number 1. $FABRIC_MOCK_PID gives the mock driver there the number by which NVML knows it. Exit
// code 77 where this machine does not allow that.

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kNotHere = 77;

bool write_to(const char* path, const std::string& text) {
    const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
    const bool is_written =
        fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::close(fd);
    return is_written;
}

bool enter() {
    const std::string user = std::to_string(::geteuid());
    const std::string group = std::to_string(::getegid());
    if (::unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS) != 0) return false;
    return write_to("/proc/self/setgroups", "deny") &&
           write_to("/proc/self/uid_map", "0 " + user + " 1") &&
           write_to("/proc/self/gid_map", "0 " + group + " 1");
}

int run_inside(int from_outside, char** command) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    char number[32] = "";
    if (::read(from_outside, number, sizeof number - 1) <= 0) return kNotHere;
    const bool has_own_proc = ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                              ::mount("proc", "/proc", "proc", 0, nullptr) == 0;
    if (!has_own_proc) return kNotHere;
    ::setenv("FABRIC_MOCK_PID", number, 1);
    ::execv(command[0], command);
    return 127;
}

}  // namespace

int main(int, char**) {
    static char program[] = GPU_PLAYER_PATH;
    char* command[] = {program, nullptr};
    int to_inside[2];
    if (!enter() || ::pipe2(to_inside, O_CLOEXEC) != 0) return kNotHere;
    const pid_t inside = ::fork();
    if (inside == 0) return run_inside(to_inside[0], command);
    const std::string number = std::to_string(inside);
    if (inside < 0 || ::write(to_inside[1], number.data(), number.size()) < 0) return kNotHere;
    int status = 0;
    ::waitpid(inside, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
