// Training: a job of many devices step by step, with stragglers and failures, under a policy that
// sees what a daemon would see and answers with batch shares. A control loop is tried out here: its
// decisions go in as a Policy, and its regret against an oracle comes out.

#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "emu/sim/topology.hpp"
#include "libfabricshm/base/units.hpp"

namespace emu {

/// A time during which a device is slower, or is gone.
struct Disturbance {
    int device = 0;
    std::uint64_t from_step = 0;
    std::uint64_t to_step = 0;  // one past the last
    double speed = 1;           // times its own; 0: it failed, for good
};

struct Trace {
    std::vector<Disturbance> disturbances;
    double noise = 0.02;  // of every compute time, as a share of it (standard deviation)
    std::uint64_t seed = 1;
};

struct TraceSpec {
    int devices = 8;
    std::uint64_t steps = 1000;
    int stragglers = 1;  // how often a device turns slow
    int failures = 0;    // devices that end, one after the other
    double slow_speed = 0.5;
    std::uint64_t length = 200;  // mean number of steps that a straggler stays slow
    double noise = 0.02;
    std::uint64_t seed = 1;
};

/// Stragglers at random times on random devices. Failures from the last device down, so that the
/// first one lives: those that are gone are also the ones that the simulated communication leaves
/// out.
Trace make_trace(const TraceSpec& spec);

struct Workload {
    Topology topology;
    std::vector<double> samples_per_s;  // of each device, undisturbed
    double batch = 1024;                // samples of all devices in a step
    fabricshm::Bytes gradient = 100 * fabricshm::kMiB;
    Seconds move = 0;      // moving the whole batch's data elsewhere; a part costs its part
    Seconds recovery = 1;  // after a failure: shrink the group and go on
    std::uint64_t steps = 1000;
};

/// What a policy sees after a step. Nothing of the trace: measured times only.
struct Snapshot {
    std::uint64_t step = 0;
    std::vector<char> alive;
    std::vector<double> shares;    // of the batch, as they were in this step
    std::vector<Seconds> compute;  // measured, 0 for those that are gone
    std::vector<Seconds> wait;     // for the slowest
    Seconds communication = 0;
};

/// What holds from the next step on.
struct Decision {
    std::vector<double> shares;  // not negative, of any sum; the living ones are scaled to 1
    int sync_interval = 1;       // gradients are merged in every n-th step
};

using Policy = std::function<Decision(const Snapshot&)>;

struct TrainingResult {
    Seconds total = 0;
    Seconds communication = 0;
    Seconds moving = 0;
    Seconds recovering = 0;
    double lost_share = 0;  // of the device time: waiting for the slowest
    double samples_per_s = 0;
    std::uint64_t changes = 0;  // steps after which shares changed
};

/// Runs the steps. Costs some operations per device and step, and one simulated allreduce for each
/// number of living devices. Deterministic.
TrainingResult run_training(const Workload& workload, const Trace& trace, const Policy& policy);

/// Equal shares, for ever.
Policy even_policy();
/// Shares by the speed of the step before: the first thing to try.
Policy proportional_policy();
/// Shares by the true speeds of the next step, which can't be known. A lower bound for policies
/// whose shares are all that counts, but for the moving, which it pays like the others. Borrows
/// both, which outlive the policy.
Policy oracle_policy(const Workload& workload, const Trace& trace);

/// How much longer than with the oracle: 0.1 is a tenth.
double regret(const TrainingResult& result, const TrainingResult& oracle);

}  // namespace emu
