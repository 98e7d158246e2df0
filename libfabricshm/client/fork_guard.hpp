// After fork() the child has the parent's memory but not its threads, and its sockets are the
// parent's: whatever it sent there would be taken for the parent's word. So sessions remember which
// process opened them, and the child closes its copies of their sockets.

#pragma once

#include <cstdint>

namespace fabricshm::fork_guard {

/// A number that differs between this process and those it was forked from. One relaxed load: also
/// for the data path.
std::uint32_t generation() noexcept;

/// From now on a child closes its copy of `fd` before fork() returns to it.
/// Any thread.
void watch(int fd);

/// Not any more. Call it before the descriptor is closed.
void unwatch(int fd) noexcept;

}  // namespace fabricshm::fork_guard
