#include "emu/sim/training.hpp"

#include <doctest/doctest.h>

#include "tests/unit/sim/simple_star.hpp"

using namespace emu;

namespace {

Workload workload_of(int devices, std::uint64_t steps) {
    Workload workload;
    workload.topology = sim_test::simple_star(devices, Placement::kInterleaved);
    workload.topology.nodes.back().media = 1e12;
    workload.samples_per_s.assign(static_cast<std::size_t>(devices), 100.0);
    workload.batch = 10.0 * devices;
    workload.steps = steps;
    return workload;
}

Trace quiet(std::vector<Disturbance> disturbances) {
    Trace trace;
    trace.noise = 0;
    trace.disturbances = std::move(disturbances);
    return trace;
}

}  // namespace

TEST_SUITE("sim.training") {
    TEST_CASE("with even shares a step takes as long as its slowest device") {
        const Workload workload = workload_of(4, 10);
        const auto fast = run_training(workload, quiet({}), even_policy());
        const double compute = fast.total - fast.communication;
        CHECK(compute == doctest::Approx(10 * 0.1));
        CHECK(fast.lost_share == doctest::Approx(0));
        // One device at half speed for half of the steps.
        const auto slow = run_training(workload, quiet({{2, 5, 10, 0.5}}), even_policy());
        CHECK(slow.total - slow.communication == doctest::Approx(5 * 0.1 + 5 * 0.2));
        CHECK(slow.lost_share == doctest::Approx(3 * 0.1 * 5 / (4 * 1.5)));
    }

    TEST_CASE("the oracle reaches the sum of the speeds, the proportional policy a step later") {
        const Workload workload = workload_of(4, 100);
        const Trace trace = quiet({{1, 50, 100, 0.5}});
        const auto oracle = run_training(workload, trace, oracle_policy(workload, trace));
        CHECK(oracle.total - oracle.communication == doctest::Approx(50 * 0.1 + 50 * 40.0 / 350));
        const auto follows = run_training(workload, trace, proportional_policy());
        const auto even = run_training(workload, trace, even_policy());
        CHECK(regret(follows, oracle) > 0);
        CHECK(regret(follows, oracle) < 0.02);
        CHECK(regret(even, oracle) > 0.2);
        CHECK(follows.changes == 1);
    }

    TEST_CASE("a failed device gets nothing, and the others go on after the recovery") {
        Workload workload = workload_of(4, 20);
        workload.recovery = 3;
        const Trace trace = quiet({{3, 10, ~std::uint64_t{0}, 0}});
        bool asked = true;
        const auto result = run_training(workload, trace, [&](const Snapshot& seen) {
            if (seen.step >= 10) asked = asked && seen.alive[3] == 0 && seen.compute[3] == 0;
            return Decision{{1, 1, 1, 1}, 1};
        });
        CHECK(asked);
        CHECK(result.recovering == 3);
        CHECK(result.total - result.communication - result.recovering ==
              doctest::Approx(10 * 0.1 + 10 * 0.4 / 3));
    }

    TEST_CASE("merging in every fourth step communicates a quarter as often") {
        const Workload workload = workload_of(4, 40);
        const auto each = run_training(workload, quiet({}), even_policy());
        const auto fourth = run_training(workload, quiet({}), [](const Snapshot& seen) {
            return Decision{seen.shares, 4};
        });
        CHECK(each.communication > 0);
        // The first step still merges: the policy speaks after it.
        CHECK(fourth.communication == doctest::Approx(each.communication * 11 / 40));
    }

    TEST_CASE("moving data costs its part of moving all, and is paid by the oracle as well") {
        Workload workload = workload_of(2, 10);
        workload.move = 10;
        const Trace trace = quiet({{0, 5, 100, 0.5}});
        const auto oracle = run_training(workload, trace, oracle_policy(workload, trace));
        // Shares go from 1/2 and 1/2 to 1/3 and 2/3.
        CHECK(oracle.moving == doctest::Approx(10.0 / 6));
    }

    TEST_CASE("the same seed makes the same trace and run, another one another") {
        TraceSpec spec;
        spec.devices = 64;
        spec.stragglers = 10;
        spec.failures = 3;
        const auto same = [](const Trace& a, const Trace& b) {
            bool equal = a.disturbances.size() == b.disturbances.size();
            for (std::size_t i = 0; equal && i < a.disturbances.size(); ++i) {
                equal = a.disturbances[i].from_step == b.disturbances[i].from_step &&
                        a.disturbances[i].device == b.disturbances[i].device;
            }
            return equal;
        };
        const Trace trace = make_trace(spec);
        CHECK(trace.disturbances.size() == 13);
        CHECK(same(trace, make_trace(spec)));
        const Workload workload = workload_of(64, 100);
        CHECK(run_training(workload, trace, even_policy()).total ==
              run_training(workload, trace, even_policy()).total);
        spec.seed = 2;
        CHECK_FALSE(same(trace, make_trace(spec)));
    }

    TEST_CASE("a policy that gives no rank anything gets even shares") {
        const Workload workload = workload_of(4, 5);
        const auto nothing = run_training(workload, quiet({}), [](const Snapshot&) {
            return Decision{{0, 0, 0, 0}, 1};
        });
        CHECK(nothing.total == run_training(workload, quiet({}), even_policy()).total);
    }
}
