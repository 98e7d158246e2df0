// Listener: the attach socket's file and its queue of connections.

#pragma once

#include <functional>
#include <string>

#include "fabricd/server/admission.hpp"
#include "fabricd/server/event_loop.hpp"
#include "fabricd/server/lock_file.hpp"
#include "libfabricshm/os/unix_socket.hpp"

namespace fabricd {

/// `mode` is set after the socket's group: until then it is 0600.
struct ListenerOptions {
    std::string path;
    unsigned mode = 0600;
};

/// One attach socket. Used by the control thread only.
class Listener {
  public:
    /// Makes the directory, takes the lock beside the socket, replaces a socket that a dead daemon
    /// left. kBusy while a live daemon has it.
    static Result<Listener> open(const ListenerOptions& options, const Admission& admission);

    Listener(Listener&&) noexcept = default;
    Listener& operator=(Listener&&) = delete;
    ~Listener();

    int get() const noexcept { return socket_.get(); }

    /// Calls `take` for each waiting connection, at most `most`.
    void accept(int most, const std::function<void(fabricshm::UnixSocket)>& take);

  private:
    Listener() = default;
    void refuse_one();

    std::string path_;
    LockFile lock_;
    fabricshm::UnixSocket socket_;
    // Given up for a moment when the process has no descriptors left: a connection that cannot be
    // accepted stays in the queue and would keep the loop spinning, so it is accepted and closed.
    fabricshm::Fd spare_;
};

}  // namespace fabricd
