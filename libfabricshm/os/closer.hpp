// Closer: closes descriptors that came from other processes, on threads of its own.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricshm {

/// The last close() of a file runs whatever the file likes: a TCP socket waits for its unsent
/// bytes, a file of a FUSE server for that server, and a unix socket closes all that waits in it.
/// Its sender decides how long that takes, so it is done where nothing else waits for it.
///
/// Each owner (a user id) has at most kThreadsPerOwner threads at a time: one whose files hang
/// holds up its own alone. All calls are for any thread.
class Closer {
  public:
    static constexpr int kThreads = 16;
    static constexpr int kThreadsPerOwner = 2;
    static constexpr std::size_t kWaitingPerOwner = 128;
    static constexpr std::size_t kWaiting = 512;
    /// How long the destructor waits for what is not closed yet.
    static constexpr Duration kTimeout = std::chrono::milliseconds(500);

    Closer();
    /// Threads that still hang then are left to the end of the process, with what they hold.
    ~Closer();
    Closer(const Closer&) = delete;
    Closer& operator=(const Closer&) = delete;

    /// Closes `fd`, soon. Never blocks and never refuses; see is_full(). Nothing for an empty one.
    void close(std::uint32_t owner, Fd fd) noexcept;

    /// So much of that owner (or of all) waits that nothing more is to be taken from it.
    bool is_full(std::uint32_t owner) const noexcept;

    /// Descriptors that are not closed yet.
    std::size_t waiting() const noexcept;

  private:
    struct State;
    // Shared with the threads, which may outlive this object.
    std::shared_ptr<State> state_;
};

}  // namespace fabricshm
