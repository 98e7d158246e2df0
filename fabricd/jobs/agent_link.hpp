// An agent's end of the stream to its task manager.

#pragma once

#include <memory>
#include <vector>

#include "jobs.pb.h"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// gRPC over a connected socket. Commands arrive on a thread of its own; all calls are for the
/// thread that made it.
class AgentLink {
  public:
    explicit AgentLink(fabricshm::Fd socket);
    ~AgentLink();

    /// Blocks while the manager is slower than what it is sent, as a pipe would. False: it is gone.
    bool send(const jobs::v1::AgentEvent& event);

    /// Readable when take() has something, or is_open() has become false.
    int wakeup() const noexcept;
    std::vector<jobs::v1::Command> take();
    /// False once the manager has ended the stream, or died. All commands before were taken.
    bool is_open();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
