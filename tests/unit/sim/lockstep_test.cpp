#include "emu/sim/lockstep.hpp"

#include <doctest/doctest.h>

#include "emu/sim/topology_preset.hpp"
#include "tests/unit/sim/simple_star.hpp"

using namespace emu;
using fabricshm::Algorithm;
using fabricshm::StepPlan;
using sim_test::call_of;
using sim_test::fixed_parts;

namespace {

struct Both {
    RunResult events;
    RunResult rounds;
};

Both run_both(const Topology& topology, fabricshm::Bytes bytes,
              const std::vector<Seconds>& arrivals) {
    const int world = static_cast<int>(topology.devices().size());
    const StepPlan plan(call_of(world, bytes, Algorithm::kRing), fixed_parts(), 64 * 1024);
    Both both;
    Fabric first(topology);
    first.prepare(plan, false);
    both.events = CollectiveRun(first, plan).run(arrivals);
    Fabric second(topology);
    second.prepare(plan, false);
    both.rounds = run_lockstep(second, plan, arrivals);
    return both;
}

Topology tree_of(int devices, Placement placement) {
    TopologySpec spec;
    spec.shape = "tree";
    spec.devices = devices;
    spec.placement = placement;
    return make_topology(spec).value();
}

}  // namespace

TEST_SUITE("sim.lockstep") {
    TEST_CASE("where all ranks do the same, rounds take what events take") {
        for (const Placement placement : {Placement::kInterleaved, Placement::kDevice}) {
            for (const int devices : {2, 8, 64}) {
                const auto both = run_both(tree_of(devices, placement), 64 * 1024 * 64, {});
                CHECK(both.rounds.last_end == doctest::Approx(both.events.last_end).epsilon(0.02));
                CHECK(both.rounds.bytes_read == doctest::Approx(both.events.bytes_read));
            }
        }
    }

    TEST_CASE("with a late rank or a slow device rounds are at most a little longer") {
        Topology topology = tree_of(32, Placement::kDevice);
        std::vector<Seconds> arrivals(32, 0.0);
        arrivals[5] = 1e-4;
        const auto late = run_both(topology, 1 << 20, arrivals);
        CHECK(late.rounds.last_end == doctest::Approx(late.events.last_end).epsilon(0.05));
        const auto slow_device = static_cast<std::size_t>(topology.devices()[7]);
        topology.nodes[slow_device].read /= 4;
        const auto slow = run_both(topology, 1 << 20, {});
        CHECK(slow.rounds.last_end >= slow.events.last_end * 0.99);
        CHECK(slow.rounds.last_end <= slow.events.last_end * 1.2);
    }

    TEST_CASE("a ring of 8,192 devices is run in rounds") {
        const Topology topology = tree_of(8192, Placement::kDevice);
        const auto call = call_of(8192, 64 << 20, Algorithm::kRing);
        const RunResult result = simulate_allreduce(topology, call, fixed_parts());
        CHECK(result.aggregated);
        CHECK(result.last_end > 0);
    }
}
