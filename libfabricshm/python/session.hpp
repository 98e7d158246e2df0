// Session, as Python sees it.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libfabricshm/python/handles.hpp"

namespace fabricshm::python {

class Arena;
class Group;

/// The cluster of the daemon, as fabricshm_session_hosts() has it.
struct KnownHosts {
    bool admits = false;
    std::vector<fabricshm_host> hosts;
};

/// Closing it closes what was opened through it. The mapping goes with the last array over it.
/// One attachment to the daemon. From any Python thread.
class Session {
  public:
    Session(const std::optional<std::string>& socket, std::int64_t timeout_ms,
            const std::optional<std::string>& label, const std::optional<std::string>& device);

    /// `exclusive`: raises when the arena is there already.
    std::shared_ptr<Arena> open_arena(const std::string& name, std::uint64_t bytes, bool exclusive,
                                      bool local);

    /// Ends a step. NaN and -1 are "not known"; group: None, as in the last step.
    void step(std::uint64_t samples, double loss, double gradient_norm, double mean_gradient_norm,
              std::int64_t compute_ns, std::uint32_t queue, const Group* group) const;

    /// The newest ones, or those of serial 0 when there are none. Never waits.
    fabricshm_directive directives() const;
    fabricshm_quota quotas() const;

    /// Of the daemon's cluster. Asks the daemon.
    KnownHosts hosts() const;

    void close();
    bool closed() const { return handle_ == nullptr; }

  private:
    std::shared_ptr<SessionHandle> handle_;
    std::vector<std::weak_ptr<Arena>> arenas_;
};

}  // namespace fabricshm::python
