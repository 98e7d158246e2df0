#include "emu/sim/control_policy.hpp"

#include <doctest/doctest.h>

#include "emu/sim/settling.hpp"
#include "tests/unit/sim/simple_star.hpp"

using namespace emu;

namespace {

Workload workload_of(std::vector<double> speeds, std::uint64_t steps) {
    Workload workload;
    const int devices = static_cast<int>(speeds.size());
    workload.topology = sim_test::simple_star(devices, Placement::kInterleaved);
    workload.topology.nodes.back().media = 1e12;
    workload.samples_per_s = std::move(speeds);
    workload.batch = 100.0 * devices;
    workload.gradient = 1 << 20;
    workload.steps = steps;
    return workload;
}

fabricd::ControlConfig acting() {
    fabricd::ControlConfig config;
    config.mode = "on";
    config.actions = "shares";
    return config;
}

Trace noisy(std::vector<Disturbance> disturbances) {
    Trace trace;
    trace.disturbances = std::move(disturbances);
    return trace;
}

}  // namespace

TEST_SUITE("sim.control_policy") {
    TEST_CASE("the daemon's loop settles within 5 windows after a change, without a reversal") {
        const Workload workload = workload_of(std::vector<double>(4, 1000), 1200);
        const Trace trace = noisy({{3, 300, 800, 0.5}});
        ControlLog log;
        SettlingWatch watch(workload, trace, control_policy(workload, acting(), &log));
        const auto result = run_training(workload, trace, watch.policy());
        const auto changes = watch.changes(12);
        REQUIRE(changes.size() == 2);
        for (const Settled& change : changes) {
            CHECK(change.is_settled);
            CHECK(change.seconds <= 5);
            CHECK(change.reversals == 0);
        }
        const auto oracle = run_training(workload, trace, oracle_policy(workload, trace));
        CHECK(result.samples_per_s > 0.9 * oracle.samples_per_s);
        // Each leap is answered at once; what two windows did not show yet may take another one.
        CHECK(log.decisions.size() >= 2);
        CHECK(log.decisions.size() <= 3);
    }

    TEST_CASE("uneven devices get to the sum of their speeds, and a failure does not upset that") {
        const Workload workload = workload_of({1000, 1000, 500, 250}, 600);
        const Trace trace = noisy({{1, 300, ~std::uint64_t{0}, 0}});
        const auto result =
            run_training(workload, trace, control_policy(workload, acting(), nullptr));
        const auto oracle = run_training(workload, trace, oracle_policy(workload, trace));
        CHECK(result.samples_per_s > 0.9 * oracle.samples_per_s);
    }

    TEST_CASE("a dry run changes nothing") {
        const Workload workload = workload_of({1000, 500}, 100);
        fabricd::ControlConfig config = acting();
        config.mode = "dry-run";
        ControlLog log;
        const auto result =
            run_training(workload, noisy({}), control_policy(workload, config, &log));
        CHECK(result.changes == 0);
        CHECK_FALSE(log.decisions.empty());
    }

    TEST_CASE("the watch sees how long shares were bad, and how often they turned round") {
        const Workload workload = workload_of({1000, 1000}, 40);
        Trace trace = noisy({{0, 10, 100, 0.25}});
        trace.noise = 0;
        SettlingWatch watch(workload, trace, [](const Snapshot& seen) {
            // Wrong first, then right.
            if (seen.step == 15) return Decision{{0.8, 0.2}, 1};
            if (seen.step >= 20) return Decision{{0.2, 0.8}, 1};
            return Decision{seen.shares, 1};
        });
        run_training(workload, trace, watch.policy());
        const auto changes = watch.changes(0);
        REQUIRE(changes.size() == 1);
        CHECK(changes[0].step == 9);
        CHECK(changes[0].is_settled);
        // Six steps of 0.4 s at even shares, five of 0.64 s.
        CHECK(changes[0].seconds == doctest::Approx(6 * 0.4 + 5 * 0.64).epsilon(0.01));
        CHECK(changes[0].reversals == 1);
    }
}
