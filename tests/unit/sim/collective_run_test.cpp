#include "emu/sim/collective_run.hpp"

#include <doctest/doctest.h>

#include <random>

#include "emu/sim/topology_preset.hpp"
#include "tests/unit/sim/simple_star.hpp"

using namespace emu;
using fabricshm::Algorithm;
using fabricshm::AllreduceCall;
using fabricshm::kMiB;
using fabricshm::StepPlan;
using fabricshm::Trigger;
using sim_test::call_of;
using sim_test::fixed_parts;
using sim_test::simple_star;

namespace {

constexpr double kMega = 1024.0 * 1024.0;
constexpr Algorithm kAll[] = {Algorithm::kFlat, Algorithm::kDirect, Algorithm::kRing,
                              Algorithm::kStaged, Algorithm::kHost};

double time_of(const Topology& topology, const AllreduceCall& call) {
    return simulate_allreduce(topology, call, fixed_parts()).from_last();
}

}  // namespace

TEST_SUITE("sim.collective_run") {
    TEST_CASE("two devices on a memory of C bytes per second: direct takes 4 S / C") {
        Topology topology = simple_star(2, Placement::kInterleaved);
        topology.nodes.back().media = 10e9;
        // Two ranks read S and write S each.
        CHECK(time_of(topology, call_of(2, kMiB, Algorithm::kDirect)) ==
              doctest::Approx(4 * kMega / 10e9).epsilon(1e-4));
    }

    TEST_CASE("engines limit where nothing else does: direct takes 2 S / engine") {
        Topology topology = simple_star(4, Placement::kInterleaved);
        for (Node& node : topology.nodes) node.read = node.write = 5e9;
        CHECK(time_of(topology, call_of(4, kMiB, Algorithm::kDirect)) ==
              doctest::Approx(2 * kMega / 5e9).epsilon(1e-3));
    }

    TEST_CASE("N devices on one memory take N times as long, whichever they are") {
        for (const int world : {2, 8, 64}) {
            Topology topology = simple_star(world, Placement::kInterleaved);
            topology.nodes.back().media = 10e9;
            CHECK(time_of(topology, call_of(world, kMiB, Algorithm::kDirect)) ==
                  doctest::Approx(2 * world * kMega / 10e9).epsilon(1e-2));
        }
    }

    TEST_CASE("a ring takes 2 (N-1)/N S/B and a word's latency for each round") {
        constexpr double kLatency = 1e-6;
        for (const int world : {2, 4, 16}) {
            Topology topology = simple_star(world, Placement::kDevice);
            topology.line_latency = kLatency;
            for (Node& node : topology.nodes) node.down = 10e9;
            const double rounds = 2.0 * (world - 1);
            // Arrival and the last barrier take a word each; the first round needs none.
            const double expected = rounds / world * kMega / 10e9 + (rounds + 1) * kLatency;
            CHECK(time_of(topology, call_of(world, kMiB, Algorithm::kRing)) ==
                  doctest::Approx(expected).epsilon(1e-4));
        }
    }

    TEST_CASE("a device alone at the end of a narrow uplink is what the others wait for") {
        // Direct by device memory: each device reads 1/N of S from it, and writes as much to it.
        Topology topology = simple_star(4, Placement::kDevice);
        topology.nodes[1].up = 1e9;
        const double expected = 3.0 / 4 * kMega / 1e9;  // two flows: its share read by the others,
        const double both = time_of(topology, call_of(4, kMiB, Algorithm::kDirect));
        CHECK(both >= expected);  // and what it writes into their outputs
        CHECK(both == doctest::Approx(2 * expected).epsilon(0.02));
    }

    TEST_CASE("every byte that the steps name passes the homes' links once, and no other") {
        for (const Algorithm algorithm : kAll) {
            for (const int world : {2, 3, 8}) {
                Topology topology = simple_star(world, Placement::kInterleaved);
                topology.nodes.back().up = 20e9;
                topology.nodes.back().down = 10e9;
                const StepPlan plan(call_of(world, 300'000, algorithm), fixed_parts(),
                                    slot_bytes_for(world));
                Fabric fabric(topology);
                fabric.prepare(plan, false);
                const RunResult result = CollectiveRun(fabric, plan).run({});
                CHECK(fabric.read_at_homes() == doctest::Approx(result.bytes_read));
                CHECK(fabric.written_at_homes() == doctest::Approx(result.bytes_written));
                CHECK(result.bytes_read > 0);
            }
        }
    }

    TEST_CASE("claims lose nothing either, and let fast devices do more") {
        Topology topology = simple_star(4, Placement::kInterleaved);
        topology.nodes.back().up = topology.nodes.back().down = 1e12;
        for (Node& node : topology.nodes) node.read = node.write = 10e9;
        topology.nodes[1].read = topology.nodes[1].write = 1e9;
        fabricshm::Tuning claiming;
        claiming.claim_from = kMiB;
        const AllreduceCall call = call_of(4, 16 * kMiB, Algorithm::kDirect);
        const StepPlan plan(call, claiming, slot_bytes_for(4));
        REQUIRE(plan.claims());
        Fabric fabric(topology);
        fabric.prepare(plan, false);
        const RunResult claimed = CollectiveRun(fabric, plan).run({});
        CHECK(fabric.read_at_homes() == doctest::Approx(4 * 16 * kMega));
        CHECK(fabric.written_at_homes() == doctest::Approx(4 * 16 * kMega));
        // 3.1 engines share 8 S of work; with fixed parts the slow one has 2 S for itself.
        CHECK(claimed.from_last() == doctest::Approx(8 * 16 * kMega / 31e9).epsilon(0.01));
        CHECK(time_of(topology, call) == doctest::Approx(2 * 16 * kMega / 1e9).epsilon(0.01));
    }

    TEST_CASE("no device ends before the last has come, with either trigger") {
        const Topology topology = make_topology({}).value();
        for (const Trigger trigger : {Trigger::kAsync, Trigger::kSync}) {
            for (const Algorithm algorithm : kAll) {
                AllreduceCall call = call_of(8, 100'000, algorithm);
                call.trigger = trigger;
                std::vector<Seconds> arrivals(8, 0.0);
                arrivals[3] = 1e-3;
                const RunResult late = simulate_allreduce(topology, call, {}, arrivals);
                for (const Seconds end : late.ended) CHECK(end >= 1e-3);
                const RunResult together = simulate_allreduce(topology, call, {});
                CHECK(late.from_last() <= together.from_last() * (1 + 1e-9));
                CHECK(late.from_first() >= 1e-3);
            }
        }
    }

    TEST_CASE("the command of rank 0 costs time, and never saves any") {
        const Topology topology = make_topology({}).value();
        AllreduceCall call = call_of(8, kMiB, Algorithm::kDirect);
        const double async = time_of(topology, call);
        call.trigger = Trigger::kSync;
        CHECK(time_of(topology, call) > async);
    }

    TEST_CASE("the same input gives the same run to the last bit") {
        TopologySpec spec;
        spec.shape = "tree";
        spec.devices = 64;
        spec.placement = Placement::kDevice;
        const Topology topology = make_topology(spec).value();
        std::mt19937_64 random(1);
        std::vector<Seconds> arrivals;
        for (int i = 0; i < 64; ++i)
            arrivals.push_back(static_cast<double>(random() % 1000) * 1e-6);
        for (const Algorithm algorithm : kAll) {
            const AllreduceCall call = call_of(64, kMiB, algorithm);
            const RunResult a = simulate_allreduce(topology, call, {}, arrivals);
            const RunResult b = simulate_allreduce(topology, call, {}, arrivals);
            CHECK(a.ended == b.ended);
            CHECK(a.events == b.events);
        }
    }

    TEST_CASE("8,192 devices cost a few events each, not one for each pair") {
        TopologySpec spec;
        spec.shape = "tree";
        spec.devices = 8192;
        for (const Placement placement : {Placement::kInterleaved, Placement::kDevice}) {
            spec.placement = placement;
            const Topology topology = make_topology(spec).value();
            const AllreduceCall call = call_of(8192, 64 * kMiB, Algorithm::kDirect);
            const RunResult result = simulate_allreduce(topology, call, fixed_parts());
            CHECK(result.events < 12 * 8192);
            CHECK(result.bytes_read == doctest::Approx(8192.0 * 64 * kMega));
            CHECK(result.from_last() > 0);
        }
    }

    TEST_CASE("very many pieces are extrapolated to what all of them take") {
        const Topology topology = make_topology({}).value();
        const AllreduceCall call = call_of(8, 64 * kMiB, Algorithm::kFlat);
        const StepPlan plan(call, {}, slot_bytes_for(8));
        const auto run = [&](std::uint64_t pieces) {
            Fabric fabric(topology);
            fabric.prepare(plan, false);
            return CollectiveRun(fabric, plan, pieces).run({}).last_end;
        };
        const double all = run(0);
        const double each = (run(8) - run(4)) / 4;
        const double guess = run(8) + each * static_cast<double>(plan.pieces().count - 8);
        CHECK(guess == doctest::Approx(all).epsilon(1e-3));
    }
}
