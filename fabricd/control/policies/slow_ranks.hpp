// Slow and faulty ranks: the alarm about one that stays slow or whose device has a fault, taking
// its work away, and trying it again. Pure like the job policy, but for what watch_for_slow_rank()
// counts.

#pragma once

#include <optional>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/policies/state.hpp"

namespace fabricd {

/// The alarm: a rank slower than control.alarm_speed of the median for control.alarm_windows, or
/// for control.probation after it was drained and is tried again. Counts in `job`; each rank is
/// reported once, and again only after it was back in between.
std::optional<Decision> watch_for_slow_rank(JobState& job, const ControlConfig& config);

/// The alarm about a rank whose device says that something is wrong with it: each fault once, and
/// again only after it was gone. Whether the job made steps or not.
std::optional<Decision> watch_for_fault(JobState& job);

/// Takes the share of a rank away whose device has had a fault of control.drain_faults for
/// control.imbalance_windows: it may be wrong by now, and will not get better. Nothing judges it.
std::optional<Decision> propose_fault_drain(const JobState& job, const ControlConfig& config);

/// Takes the share of an alarmed rank away: what the alarm leads to when control.actions has drain.
std::optional<Decision> propose_drain(const JobState& job, const ControlConfig& config);

/// Gives a drained rank a small share after control.drain_retry windows, twice as many after each
/// time that it was still slow then (at most 16 times as many): without work nothing shows its
/// speed. Not while its device has such a fault.
std::optional<Decision> propose_return(const JobState& job, const ControlConfig& config);

/// The rank has no work from now on, or has some again. Part of carrying such a decision out.
void set_drained(RankState& rank, bool drained) noexcept;

}  // namespace fabricd
