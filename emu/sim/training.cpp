#include "emu/sim/training.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <random>

#include "emu/sim/collective_run.hpp"
#include "emu/sim/random.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/collective/tuning.hpp"

namespace emu {

namespace {

// Box and Muller's; <random>'s own differs between libraries.
double normal(std::mt19937_64& random) {
    const double radius = std::sqrt(-2 * std::log1p(-uniform(random)));
    return radius * std::cos(2 * std::numbers::pi * uniform(random));
}

// Each device's speed in a step, 0 once it has failed.
class Speeds {
  public:
    Speeds(const Workload& workload, const Trace& trace) : workload_(workload), trace_(trace) {}

    std::vector<double> at(std::uint64_t step) const {
        std::vector<double> speeds = workload_.samples_per_s;
        for (const Disturbance& d : trace_.disturbances) {
            const auto index = static_cast<std::size_t>(d.device);
            // For good: a failed device does not come back, whatever the end of its disturbance
            // says.
            const bool gone = d.speed <= 0 && step >= d.from_step;
            const bool slow = step >= d.from_step && step < d.to_step;
            if (gone) speeds[index] = 0;
            if (!gone && slow) speeds[index] *= d.speed;
        }
        return speeds;
    }

  private:
    const Workload& workload_;
    const Trace& trace_;
};

// The allreduce of so many living devices: the topology without its last ones, since all are alike
// to the network of a star or tree.
class Communication {
  public:
    explicit Communication(const Workload& workload) : workload_(workload) {}

    // Cached by the number of the living: runs have thousands of steps and a few failures.
    Seconds of(int alive) {
        const auto [known, fresh] = known_.try_emplace(alive, 0);
        // A single device has none to merge with.
        if (!fresh || alive < 2) return known->second;
        Topology topology = workload_.topology;
        const auto devices = topology.devices();
        // Devices are leaves here, and a node of another kind in their place touches nothing.
        for (std::size_t i = static_cast<std::size_t>(alive); i < devices.size(); ++i) {
            topology.nodes[static_cast<std::size_t>(devices[i])].kind = NodeKind::kSwitch;
        }
        fabricshm::AllreduceCall call;
        call.world = alive;
        call.bytes = workload_.gradient;
        const auto tuning = fabricshm::default_tuning(alive, alive, 32 * fabricshm::kMiB);
        known->second = simulate_allreduce(topology, call, tuning).from_last();
        return known->second;
    }

  private:
    const Workload& workload_;
    std::map<int, Seconds> known_;
};

void scale(std::vector<double>& shares, const std::vector<double>& speeds) {
    double sum = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
        // Also refuses NaN.
        if (speeds[i] <= 0 || !(shares[i] > 0)) shares[i] = 0;
        sum += shares[i];
    }
    // A policy that gives no device anything gets what it would have got without being asked.
    for (std::size_t i = 0; i < shares.size(); ++i) {
        shares[i] = sum > 0 ? shares[i] / sum : speeds[i] > 0 ? 1 : 0;
    }
    // Once more, since the ones of the line above are no shares yet.
    if (sum <= 0) scale(shares, speeds);
}

// Half of the sum of all changes: what one gains others lose.
double moved_part(const std::vector<double>& before, const std::vector<double>& after) {
    double moved = 0;
    for (std::size_t i = 0; i < before.size(); ++i) moved += std::max(after[i] - before[i], 0.0);
    return moved;
}

}  // namespace

Trace make_trace(const TraceSpec& spec) {
    Trace trace;
    trace.noise = spec.noise;
    trace.seed = spec.seed;
    std::mt19937_64 random(spec.seed);
    const auto below = [&](std::uint64_t end) {
        return static_cast<std::uint64_t>(uniform(random) * static_cast<double>(end));
    };
    for (int i = 0; i < spec.stragglers; ++i) {
        const int device = static_cast<int>(below(static_cast<std::uint64_t>(spec.devices)));
        const std::uint64_t from = below(spec.steps);
        const auto length = static_cast<std::uint64_t>(-std::log1p(-uniform(random)) *
                                                       static_cast<double>(spec.length));
        // At least one step.
        trace.disturbances.push_back({device, from, from + length + 1, spec.slow_speed});
    }
    // Different devices, the first one never: some have to live.
    const int failures = std::min(spec.failures, spec.devices - 1);
    for (int i = 0; i < failures; ++i) {
        trace.disturbances.push_back(
            {spec.devices - 1 - i, below(spec.steps), ~std::uint64_t{0}, 0});
    }
    return trace;
}

TrainingResult run_training(const Workload& workload, const Trace& trace, const Policy& policy) {
    const std::size_t devices = workload.samples_per_s.size();
    FABRIC_CHECK(devices == workload.topology.devices().size());
    const Speeds speeds(workload, trace);
    Communication communication(workload);
    std::mt19937_64 random(trace.seed);
    TrainingResult result;
    // Equal ones, whatever the speeds: nothing has been measured yet.
    std::vector<double> shares(devices, 1.0);
    std::vector<double> now = speeds.at(0);
    scale(shares, now);
    int interval = 1;
    double busy = 0;
    double device_time = 0;
    auto alive = devices - static_cast<std::size_t>(std::count(now.begin(), now.end(), 0.0));
    for (std::uint64_t step = 0; step < workload.steps; ++step) {
        now = speeds.at(step);
        const auto living =
            devices - static_cast<std::size_t>(std::count(now.begin(), now.end(), 0.0));
        // The survivors shrink their group together and go on.
        if (living < alive) result.recovering += workload.recovery;
        alive = living;
        // Again in every step: a device that failed since has given up its share.
        scale(shares, now);
        Snapshot seen{step, {}, shares, {}, {}, 0};
        Seconds slowest = 0;
        for (std::size_t i = 0; i < devices; ++i) {
            // The same number of draws in every step, so that a policy cannot change the noise.
            const double noise = std::max(1 + trace.noise * normal(random), 0.1);
            seen.alive.push_back(now[i] > 0 ? 1 : 0);
            seen.compute.push_back(now[i] > 0 ? workload.batch * shares[i] / now[i] * noise : 0);
            slowest = std::max(slowest, seen.compute.back());
            busy += seen.compute.back();
        }
        for (std::size_t i = 0; i < devices; ++i) {
            seen.wait.push_back(now[i] > 0 ? slowest - seen.compute[i] : 0);
        }
        // A device that waits costs as much as one that computes.
        device_time += slowest * static_cast<double>(alive);
        const bool merges = (step + 1) % static_cast<std::uint64_t>(interval) == 0;
        seen.communication = merges ? communication.of(static_cast<int>(alive)) : 0;
        result.communication += seen.communication;
        result.total += slowest + seen.communication;
        Decision decision = policy(seen);
        FABRIC_CHECK(decision.shares.size() == devices && decision.sync_interval >= 1);
        interval = decision.sync_interval;
        // With this step's living: which one fails in the next step is found out then.
        scale(decision.shares, now);
        const double moved = moved_part(shares, decision.shares);
        // Rounding alone is no change.
        if (moved > 1e-9) ++result.changes;
        result.moving += moved * workload.move;
        shares = decision.shares;
    }
    result.total += result.moving + result.recovering;
    result.lost_share = 1 - busy / device_time;
    result.samples_per_s = workload.batch * static_cast<double>(workload.steps) / result.total;
    return result;
}

Policy even_policy() {
    return [](const Snapshot& seen) {
        return Decision{std::vector<double>(seen.shares.size(), 1.0), 1};
    };
}

Policy proportional_policy() {
    return [](const Snapshot& seen) {
        Decision decision;
        for (std::size_t i = 0; i < seen.shares.size(); ++i) {
            // samples/s is share times batch over compute time; the batch cancels out.
            decision.shares.push_back(seen.compute[i] > 0 ? seen.shares[i] / seen.compute[i] : 0);
        }
        return decision;
    };
}

Policy oracle_policy(const Workload& workload, const Trace& trace) {
    return [speeds = Speeds(workload, trace)](const Snapshot& seen) {
        return Decision{speeds.at(seen.step + 1), 1};
    };
}

double regret(const TrainingResult& result, const TrainingResult& oracle) {
    return result.total / oracle.total - 1;
}

}  // namespace emu
