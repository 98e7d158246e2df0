// Host policy: what would be good beyond one job: quotas and compute shares of vGPUs, homes of
// shards. Pure, like the job policy.

#pragma once

#include <optional>
#include <span>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/decision.hpp"
#include "fabricd/control/window.hpp"

namespace fabricd {

/// S321 to S323: memory quotas of a device's users, when somebody was refused memory or when the
/// quotas no longer fit. Changes of less than control.gain of a quota are left out, unless the
/// others need their room. What shrinks comes first.
std::optional<Decision> propose_quotas(const QuotaDevice& device, const ControlConfig& config);

/// S421 to S423: compute shares of those users of a device whose use is known, in per cent, when
/// one is off by 5 or more. At most control.quota_step of the device changes hands at once. What
/// shrinks comes first.
std::optional<Decision> propose_compute_shares(const QuotaDevice& device,
                                               const ControlConfig& config);

/// S211 to S213: shards to the nodes that read them, which have to save control.gain of the reading
/// time by it.
std::optional<Decision> propose_placement(const PlacementWindow& window,
                                          const ControlConfig& config);

/// What takes `undone` back, which holds as it was decided. Of memory nobody loses what it uses:
/// who got some gives back what of it is unused, and who gave it gets so much less, so that the
/// quotas are together what they were before. Nothing when there is nothing to give back.
std::optional<Decision> taking_back(const Decision& undone, std::span<const QuotaWindow> users);

}  // namespace fabricd
