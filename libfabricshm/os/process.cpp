#include "libfabricshm/os/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <optional>

namespace fabricshm {

Result<Fd> open_pidfd(pid_t pid) {
    // Debian 12's glibc has a wrapper, older ones do not; the system call is always close-on-exec.
    const long number = ::syscall(SYS_pidfd_open, pid, 0);
    if (number >= 0) return Fd(static_cast<int>(number));
    if (errno == ESRCH) return Error{Errc::kNotFound, 0, "open pidfd"};
    return error_from_errno(errno, "open pidfd");
}

bool pidfd_alive(const Fd& pidfd) noexcept {
    pollfd entry{pidfd.get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 0;
}

namespace {

// The number in a field of /proc/<pid>/stat; `rest` begins with the third.
std::optional<std::uint64_t> number_in(std::string_view rest, int field) {
    for (int at = 3; at < field; ++at) {
        const auto space = rest.find(' ');
        if (space == std::string_view::npos) return std::nullopt;
        rest.remove_prefix(space + 1);
    }
    std::uint64_t number = 0;
    const auto [end, failure] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (failure != std::errc{}) return std::nullopt;
    return number;
}

}  // namespace

Result<std::uint64_t> detail::start_time_in(std::string_view stat_line) {
    const Error unreadable{Errc::kCorrupt, 0, "read process start time"};
    // The second field is the program's name in brackets and may hold anything, brackets and
    // spaces included; the last bracket ends it.
    const auto name_end = stat_line.rfind(')');
    if (name_end == std::string_view::npos || name_end + 2 >= stat_line.size()) return unreadable;
    std::string_view rest = stat_line.substr(name_end + 2);
    const bool zombie = rest.front() == 'Z' || rest.front() == 'X';
    const auto threads = number_in(rest, 20);
    // The state is that of the first thread. While others run, the process lives on and stores.
    if (zombie && threads.value_or(1) <= 1) {
        return Error{Errc::kNotFound, 0, "read process start time"};
    }
    const auto ticks = number_in(rest, 22);
    if (!ticks) return unreadable;
    return *ticks;
}

Result<std::uint64_t> process_start_time(pid_t pid) {
    char path[40];
    std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
    const Fd file(::open(path, O_RDONLY | O_CLOEXEC));
    if (!file) return error_from_errno(errno, "read process start time");
    char line[1024];
    const ssize_t length = ::read(file.get(), line, sizeof line);
    if (length <= 0) return Error{Errc::kNotFound, 0, "read process start time"};
    return detail::start_time_in({line, static_cast<std::size_t>(length)});
}

namespace {

// The name that this kernel gave itself when it started, folded into one number; 0 if it has none.
std::uint64_t read_boot_id() noexcept {
    const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    char text[64];
    const ssize_t length = file ? ::read(file.get(), text, sizeof text) : 0;
    std::uint64_t folded = 0;
    for (ssize_t i = 0; i < length; ++i) {
        // FNV's prime: good enough to distinguish hosts, and no process gains from a collision.
        folded = (folded ^ static_cast<unsigned char>(text[i])) * 0x100000001b3;
    }
    return folded;
}

}  // namespace

namespace {

Result<std::uint64_t> namespace_at(const char* path) {
    struct stat status {};
    if (::stat(path, &status) != 0) return error_from_errno(errno, "pid namespace");
    // The first namespace of every host has the same inode: the boot distinguishes hosts that share
    // memory, or one would look for the other's processes among its own.
    return static_cast<std::uint64_t>(status.st_ino) ^ own_kernel();
}

}  // namespace

Result<std::uint64_t> own_pid_namespace() {
    return namespace_at("/proc/self/ns/pid");
}

Result<std::uint64_t> pid_namespace_of(pid_t pid) {
    char path[40];
    std::snprintf(path, sizeof path, "/proc/%d/ns/pid", static_cast<int>(pid));
    return namespace_at(path);
}

std::uint64_t own_kernel() noexcept {
    static const std::uint64_t boot = read_boot_id();
    return boot;
}

Result<ProcessIdentity> own_identity() {
    FABRIC_TRY(const std::uint64_t start_time, process_start_time(::getpid()));
    FABRIC_TRY(const std::uint64_t space, own_pid_namespace());
    return ProcessIdentity{::getpid(), start_time, space};
}

Liveness liveness_of(const ProcessIdentity& process) {
    const auto space = own_pid_namespace();
    if (!space.ok() || space.value() != process.pid_namespace) return Liveness::kUnknown;
    const auto start_time = process_start_time(process.pid);
    if (start_time.ok()) {
        return start_time.value() == process.start_time ? Liveness::kAlive : Liveness::kDead;
    }
    return start_time.error().code == Errc::kNotFound ? Liveness::kDead : Liveness::kUnknown;
}

}  // namespace fabricshm
