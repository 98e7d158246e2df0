// The daemon's control loop as a policy of the simulator: the same windows, stages and guards, fed
// with the counters that ranks would write and followed as ranks would follow.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "emu/sim/training.hpp"
#include "fabricd/control/loop/loop.hpp"

namespace emu {

/// What the loop did in a run.
struct ControlLog {
    std::vector<fabricd::Decision> decisions;
    std::vector<fabricd::DecisionOutcome> outcomes;
    std::uint64_t windows = 0;
};

/// Ticks the loop whenever the simulated time has passed a window; its directives hold from the
/// next step on. A failed device leaves the group, which goes on under a new name as after a
/// shrink. `log` may be null and outlives the policy.
Policy control_policy(const Workload& workload, const fabricd::ControlConfig& config,
                      ControlLog* log);

}  // namespace emu
