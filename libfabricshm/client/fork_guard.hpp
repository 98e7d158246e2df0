// After fork() the child has the parent's memory but not its threads, and its sockets are the
// parent's: whatever it sent there would be taken for the parent's word. So sessions remember which
// process opened them, and the child closes its copies of their sockets.
//
// A thread may fork at any moment while another one opens. Whatever a child may not have is made
// and put on the list within one step under fork_lock(), which fork() takes: a child has either
// nothing of it or finds it on the list.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/stripes.hpp"
#include "libfabricshm/os/unix_socket.hpp"

namespace fabricshm::fork_guard {

/// A number that differs between this process and those it was forked from. One relaxed load: also
/// for the data path.
std::uint32_t generation() noexcept;

/// UnixSocket::connect(); a child closes its copy of the socket before fork() returns to it. The
/// last holder closes it, in a child that still has one of the parent's: nothing.
Result<std::shared_ptr<const UnixSocket>> connect(const std::string& path, TimePoint deadline);

/// The descriptors of one packet. A child has none of them, from the packet's arrival on until they
/// are taken. Of one thread.
class Incoming {
  public:
    Incoming() = default;
    /// Closes what was not taken.
    ~Incoming();
    Incoming(const Incoming&) = delete;
    Incoming& operator=(const Incoming&) = delete;

    /// UnixSocket::receive(), once. Waits without the lock.
    Result<Received> receive(const UnixSocket& socket, std::span<std::byte> packet,
                             TimePoint deadline);

    /// Whether there are descriptors in the places [first, first + count), none of them taken.
    bool has(std::size_t first, std::size_t count = 1) const noexcept;

    /// One that a child may have.
    Fd take(std::size_t index);
    /// Those that a child closes for as long as they have a holder: files of memory that it does
    /// not get.
    std::shared_ptr<const Fd> keep(std::size_t index);
    std::shared_ptr<const std::vector<Fd>> keep(std::size_t first, std::size_t count);

  private:
    std::array<Fd, Stripes::kFilesMax> files_;
};

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

}  // namespace fabricshm::fork_guard
