// Runs cluster.fence_command for one lost incarnation, next to everything else that its thread
// does.

#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
    /// It has become needless: poll() has its end soon, and never 0.
    virtual void end(BootTime now) = 0;
};

/// What a command wrote, for the log: 16 lines of 200 letters at most. What is no printable ASCII
/// becomes '?'; where something is left out, the last line says so.
std::vector<std::string> log_lines(std::string_view output);

/// `/bin/sh -c COMMAND` with FABRIC_FENCE_HOST and FABRIC_FENCE_INCARNATION in its environment, in
/// a process group of its own: all of it is ended after `timeout`, with the object, and when this
/// process is gone. What leaves the group (setsid) is not followed. Its output goes to the log when
/// it has ended.
class FenceCommand final : public FenceRunner {
  public:
    FenceCommand(std::string command, fabricshm::Duration timeout)
        : command_(std::move(command)), timeout_(timeout) {}
    ~FenceCommand() override;

    fabricshm::Result<void> start(const FenceKey& key) override;
    std::optional<int> poll(BootTime now) override;
    void end(BootTime now) override;

    /// Between SIGTERM and SIGKILL.
    static constexpr fabricshm::Duration kEndGrace = std::chrono::seconds(2);

  private:
    void read_output();

    std::string command_;
    fabricshm::Duration timeout_;
    pid_t pid_ = -1;
    BootTime end_{};
    bool is_ending_ = false;
    fabricshm::Fd alive_;   // its other end is closed when this process is gone
    fabricshm::Fd output_;  // of the command
    std::string said_;
};

}  // namespace fabricd
