// Puts the control loop into the daemon: where its samples come from, what carries its decisions
// out, where its journal is.

#pragma once

#include <memory>
#include <string>

#include "fabricd/config/config.hpp"
#include "fabricd/control/loop/controller.hpp"
#include "fabricd/server/daemon.hpp"
#include "fabricd/service/control_places.hpp"
#include "fabricd/service/control_quotas.hpp"
#include "fabricd/service/read_shards.hpp"

namespace fabricd {

/// The loop and what it acts with. Made after the daemon and the vGPUs, and gone before them.
class DaemonControl {
  public:
    /// Starts the loop's thread. Nothing when control.mode is off.
    static std::unique_ptr<DaemonControl> start(const Config& config, Daemon& daemon,
                                                VgpuLimits& vgpus);

    const Controller& controller() const noexcept { return *controller_; }

    /// The decision `id`, or the newest `last`: what the admin API asks for.
    std::vector<Decision> decisions(std::uint64_t id, std::size_t last) const;

  private:
    std::unique_ptr<QuotaSource> quotas_;
    std::unique_ptr<ReadShards> reads_;
    std::unique_ptr<PlaceSource> places_;
    std::unique_ptr<Actuators> actuators_;
    std::unique_ptr<Controller> controller_;  // behind what it uses, so that it ends first
};

/// The keys of section [control] as lines of key=value.
std::string control_settings(const Config& config);

}  // namespace fabricd
