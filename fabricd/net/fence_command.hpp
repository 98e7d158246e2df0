// Runs cluster.fence_command for one lost incarnation, next to everything else that its thread
// does.

#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "fabricd/net/fence.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// What carries a fence out; for one thread.
class FenceRunner {
  public:
    virtual ~FenceRunner() = default;
    /// Begins it. Returns at once.
    virtual fabricshm::Result<void> start(const FenceKey& key) = 0;
    /// Of the one that was started: nothing while it runs; 0 when it ended well by itself, else its
    /// exit status, 128 and the signal, or 124 when it took too long and was ended. Once per start.
    virtual std::optional<int> poll(BootTime now) = 0;
};

/// `/bin/sh -c COMMAND` with FABRIC_FENCE_HOST and FABRIC_FENCE_INCARNATION in its environment, in
/// a process group of its own: all of it is ended after `timeout`, and with the object. Its output
/// goes where the daemon's goes.
class FenceCommand final : public FenceRunner {
  public:
    FenceCommand(std::string command, fabricshm::Duration timeout)
        : command_(std::move(command)), timeout_(timeout) {}
    ~FenceCommand() override;

    fabricshm::Result<void> start(const FenceKey& key) override;
    std::optional<int> poll(BootTime now) override;

  private:
    std::string command_;
    fabricshm::Duration timeout_;
    pid_t pid_ = -1;
    BootTime end_{};
};

}  // namespace fabricd
