// Strangers: connections that were refused, and have a moment to read why.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/closer.hpp"
#include "libfabricshm/os/unix_socket.hpp"

namespace fabricd {

/// Closed at once a connection would lose the answer: a close over unread bytes is a reset to the
/// peer. Used by the control thread only.
class Strangers {
  public:
    static constexpr fabricshm::Duration kReadRefusal = std::chrono::milliseconds(200);
    /// More go at once, the oldest first.
    static constexpr std::size_t kMaxRefused = 64;

    /// `closer` outlives this.
    explicit Strangers(fabricshm::Closer& closer) : closer_(closer) {}

    /// It hears `error` as the answer to the hello that it will have sent; nothing of it is read.
    void send_away(fabricshm::UnixSocket socket, std::uint32_t uid, const fabricshm::Error& error,
                   fabricshm::TimePoint now);

    /// Closes those whose moment is over.
    void close(fabricshm::TimePoint now);
    fabricshm::TimePoint next_deadline() const noexcept;

  private:
    struct Refused {
        fabricshm::Fd socket;
        std::uint32_t uid;
        fabricshm::TimePoint until;
    };
    fabricshm::Closer& closer_;
    std::deque<Refused> refused_;  // the first one goes first
};

}  // namespace fabricd
