// Job policy: what would be good for one job, by the stages. Pure: a proposal becomes a decision
// in the loop, after the guards that look across windows.

#pragma once

#include <optional>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/policies/state.hpp"

namespace fabricd {

/// Each gives a decision without an id, or nothing when there is nothing to gain, an input is
/// missing, or the predicted gain does not pay for itself (control.gain, control.horizon).

/// S112, S113: shares of the batch by speed, at most control.share_step of it at once.
std::optional<Decision> propose_shares(const JobState& job, const ControlConfig& config);

/// S222, S223: work units by capability and response, for jobs whose ranks report a queue.
std::optional<Decision> propose_units(const JobState& job, const ControlConfig& config);

/// S312, S313: steps between two synchronisations. Down at once, whatever it costs, while the loss
/// gets worse.
std::optional<Decision> propose_interval(const JobState& job, const ControlConfig& config);

/// The job says how many units wait on its ranks, so it is work units that it follows.
bool works_in_units(const JobState& job) noexcept;

}  // namespace fabricd
