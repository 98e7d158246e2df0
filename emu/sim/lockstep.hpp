// Lockstep: a ring of many ranks, round by round. Its 2 (N - 1) rounds of N ranks are 134 million
// steps for 8,192 devices. The rates are computed once, with all ranks at work; then a round is one
// pass over the ranks. Exact where all ranks are at work all the time. With stragglers the ranks
// that wait would leave their share of a link to the others: lockstep then reports a time that is a
// little too long.

#pragma once

#include "emu/sim/collective_run.hpp"

namespace emu {

/// World sizes above this run in lockstep, up to it event by event.
inline constexpr int kLockstepFrom = 128;

/// For plans of the algorithm ring without pieces, async or sync.
RunResult run_lockstep(Fabric& fabric, const fabricshm::StepPlan& plan,
                       const std::vector<Seconds>& arrivals);

}  // namespace emu
