// Slow ranks: the alarm about a rank that stays slow, taking its work away, and trying it again.
// Pure like the job policy, but for what watch_for_slow_rank() counts.

#pragma once

#include <optional>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/decision.hpp"
#include "fabricd/control/state.hpp"

namespace fabricd {

/// The alarm: a rank slower than control.alarm_speed of the median for control.alarm_windows, or
/// for control.probation after it was drained and is tried again. Counts in `job`; each rank is
/// reported once, and again only after it was back in between.
std::optional<Decision> watch_for_slow_rank(JobState& job, const ControlConfig& config);

/// Takes the share of an alarmed rank away: what the alarm leads to when control.actions has drain.
std::optional<Decision> propose_drain(const JobState& job, const ControlConfig& config);

/// Gives a drained rank a small share after control.drain_retry windows, twice as many after each
/// time that it was still slow then (at most 16 times as many): without work nobody knows its
/// speed.
std::optional<Decision> propose_return(const JobState& job, const ControlConfig& config);

/// The rank has no work from now on, or has some again. Part of carrying such a decision out.
void set_drained(RankState& rank, bool drained) noexcept;

}  // namespace fabricd
