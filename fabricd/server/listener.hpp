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
    /// Makes the directory, takes the lock next to the socket, replaces a socket that a dead daemon
    /// left. kBusy while a live daemon has it.
    static Result<Listener> open(const ListenerOptions& options, const Admission& admission);

    Listener(Listener&&) noexcept = default;
    Listener& operator=(Listener&&) = delete;
    ~Listener();

    int get() const noexcept { return socket_.get(); }

    /// Calls `take` for each waiting connection, at most `most`. False when there is no descriptor
    /// for the next one, of the process or of the host: they stay in the queue, so that the socket
    /// stays readable, and are to be asked for again in a while. Says so at most once per second.
    bool accept(int most, const std::function<void(fabricshm::UnixSocket)>& take, TimePoint now);

    /// Removes the file and gives the socket away, for callers that decide where it is closed: with
    /// it go all connections that wait, and what they sent.
    fabricshm::Fd release() noexcept;

  private:
    Listener() = default;
    void remove_file() noexcept;

    std::string path_;
    LockFile lock_;
    fabricshm::UnixSocket socket_;
    TimePoint next_line_{};  // of the log, on being out of descriptors
};

}  // namespace fabricd
