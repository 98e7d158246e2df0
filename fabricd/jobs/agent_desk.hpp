// The task manager's end of the streams to its agents.

#pragma once

#include <memory>
#include <vector>

#include "jobs.pb.h"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// What an agent said. Without an event: its stream has ended.
struct AgentNews {
    unsigned agent = 0;
    bool has_ended = false;
    jobs::v1::AgentEvent event;
};

/// A gRPC server without an address: agents get one end of a pair of sockets each. All calls are
/// for one thread; gRPC's own threads read the streams.
class AgentDesk {
  public:
    static fabricshm::Result<std::unique_ptr<AgentDesk>> start();
    ~AgentDesk();

    /// The agent's end, to be descriptor 3 of its process.
    fabricshm::Result<fabricshm::Fd> connect();

    /// The other end of a connection that an agent accepted.
    fabricshm::Result<void> add(fabricshm::Fd socket);

    /// Readable when take() has something.
    int wakeup() const noexcept;
    std::vector<AgentNews> take();

    /// Never blocks. False: the agent is not registered, or gone.
    bool send(unsigned agent, const jobs::v1::Command& command);

    /// Ends all streams: what agents still have running they end.
    void stop();

  private:
    struct Impl;
    explicit AgentDesk(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
