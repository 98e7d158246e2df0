// After fork() the child has the parent's memory but not its threads, and its sockets are the
// parent's: whatever it sent there would be taken for the parent's word. So sessions remember which
// process opened them, and the child closes its copies of their sockets.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricshm::fork_guard {

/// A number that differs between this process and those it was forked from. One relaxed load: also
/// for the data path.
std::uint32_t generation() noexcept;

/// From now on a child closes its copy of `fd` before fork() returns to it.
/// Any thread.
void watch(int fd);

/// Not any more. Call it before the descriptor is closed.
void unwatch(int fd) noexcept;

/// Memory that a child does not get, since it may be another job's when the parent has left it:
/// mapped with MapOptions::is_inherited of false. While this lives, a child has nothing at these
/// addresses for as long as it runs, whatever it maps later: a touch there is SIGSEGV.
class Hole {
  public:
    Hole(std::byte* data, Bytes bytes);
    /// Before the memory is unmapped.
    ~Hole();
    Hole(const Hole&) = delete;
    Hole& operator=(const Hole&) = delete;

  private:
    std::byte* const data_;
};

/// Files of such memory: a child closes its copies.
std::shared_ptr<const Fd> guarded(Fd file);
std::shared_ptr<const std::vector<Fd>> guarded(std::vector<Fd> files);

}  // namespace fabricshm::fork_guard
