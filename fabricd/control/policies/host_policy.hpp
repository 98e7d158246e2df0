// Host policy: what would be good beyond one job: quotas and compute shares of vGPUs, homes of
// shards. Pure, like the job policy.

#pragma once

#include <optional>
#include <span>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/journal/window.hpp"

namespace fabricd {

/// S321 to S323: memory quotas of a device's users. A user that was refused memory gets what is
/// free, and then what others don't use and lend (lending.hpp): all quotas are together never less
/// than before, as long as they fit into the device. What shrinks comes first.
std::optional<Decision> propose_quotas(const QuotaDevice& device, const ControlConfig& config);

/// The same, for users that ask and have less than their promise: all of it at once, as far as
/// others don't use it. Nothing to be judged.
std::optional<Decision> propose_quota_returns(const QuotaDevice& device,
                                              const ControlConfig& config);

/// S421 to S423: compute shares of those users of a device whose use is known, in per cent. What
/// others don't use goes to those that are held up, if that is 5 or more; at most
/// control.quota_step of the device changes hands at once. What shrinks comes first.
std::optional<Decision> propose_compute_shares(const QuotaDevice& device,
                                               const ControlConfig& config);

/// The same, for users that are held up and have less than their promise: all of it at once.
std::optional<Decision> propose_share_returns(const QuotaDevice& device,
                                              const ControlConfig& config);

/// S211 to S213: shards to the nodes that read them, which have to save control.gain of the reading
/// time by it.
std::optional<Decision> propose_placement(const PlacementWindow& window,
                                          const ControlConfig& config);

/// What reverses `undone`, which holds as it was decided. Of memory no user loses what it uses:
/// one that got some returns what of it is unused, and one that gave it gets so much less, so that
/// the quotas are together what they were before. Nothing when there is nothing to return.
std::optional<Decision> taking_back(const Decision& undone, std::span<const QuotaWindow> users);

/// How an action about the vGPUs of one GPU comes about: what is proposed, and what gives promises
/// back, which comes before all proposals.
struct VgpuAction {
    using Propose = std::optional<Decision> (*)(const QuotaDevice&, const ControlConfig&);
    ActionKind kind;
    Propose propose;
    Propose propose_returns;
};

/// Memory before compute: a refused allocation ends a job, a small share only slows it.
inline constexpr VgpuAction kVgpuActions[] = {
    {ActionKind::kQuota, propose_quotas, propose_quota_returns},
    {ActionKind::kComputeShare, propose_compute_shares, propose_share_returns}};

}  // namespace fabricd
