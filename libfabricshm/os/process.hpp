// Other processes: are they alive, and are they still the ones we knew under that number?

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricshm {

/// A process, distinguished from a later one with the same number.
struct ProcessIdentity {
    pid_t pid = 0;
    std::uint64_t start_time = 0;     // clock ticks after boot, from /proc
    std::uint64_t pid_namespace = 0;  // a pid means something only inside its namespace

    bool operator==(const ProcessIdentity&) const = default;
};

/// A descriptor that becomes readable when `pid` ends. kNotFound when there is no such process.
Result<Fd> open_pidfd(pid_t pid);

/// False once the process of `pidfd` has ended, waited for or not. Never blocks.
bool pidfd_alive(const Fd& pidfd) noexcept;

/// When `pid` started, in clock ticks after boot. kNotFound when it is gone or a zombie.
Result<std::uint64_t> process_start_time(pid_t pid);

/// A number for this process's pid namespace, different on every host and after every boot.
Result<std::uint64_t> own_pid_namespace();

/// The same for the process that has this number here. kDenied where it may not be read, kNotFound
/// when it is gone.
Result<std::uint64_t> pid_namespace_of(pid_t pid);

/// A number for the kernel that this process runs on, the same in all its containers.
std::uint64_t own_kernel() noexcept;

/// This process. Costs two reads of /proc; keep it, but not across a fork.
Result<ProcessIdentity> own_identity();

enum class Liveness { kAlive, kDead, kUnknown };

/// Whether `process` still runs. kUnknown when it lives in another pid namespace.
Liveness liveness_of(const ProcessIdentity& process);

namespace detail {
/// Field 22 of a line of /proc/PID/stat, unless its state is Z or X and no other thread runs. For
/// tests.
Result<std::uint64_t> start_time_in(std::string_view stat_line);
}  // namespace detail

}  // namespace fabricshm
