// Host policy: what would be good beyond one job: quotas and compute shares of vGPUs, homes of
// shards. Pure, like the job policy.

#pragma once

#include <optional>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/decision.hpp"
#include "fabricd/control/trial.hpp"
#include "fabricd/control/window.hpp"

namespace fabricd {

/// What actions on a device or on the shards share: one at a time, judged by what all jobs of the
/// host get done.
struct Ground {
    Trial trial;
};

/// S321 to S323: memory quotas of a device's users, when somebody was refused memory or when the
/// quotas no longer fit. Changes of less than control.gain of a quota are left out.
std::optional<Decision> propose_quotas(const QuotaDevice& device, const ControlConfig& config);

/// S421 to S423: compute shares of a device's users, in per cent, when one is off by 5 or more.
std::optional<Decision> propose_compute_shares(const QuotaDevice& device,
                                               const ControlConfig& config);

/// S211 to S213: shards to the nodes that read them.
std::optional<Decision> propose_placement(const PlacementWindow& window,
                                          const ControlConfig& config);

}  // namespace fabricd
