// ListenerProbe: whether anything listens at a TCP address.

#pragma once

#include <sys/socket.h>

#include <cstdint>

#include "libfabricshm/os/fd.hpp"

namespace fabricshm {

/// Asks by connecting. Sends nothing, and never waits.
class ListenerProbe {
  public:
    enum class Answer : std::uint8_t {
        kNone,  // not yet, or nothing that says either
        kListens,
        kRefused,  // the machine answers, and says that nothing listens there
    };

    /// Connects, unless it did so before and has no answer to that yet.
    Answer ask(const sockaddr* address, socklen_t bytes) noexcept;

  private:
    Fd connecting_;
};

}  // namespace fabricshm
