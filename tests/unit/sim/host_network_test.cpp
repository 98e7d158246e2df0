#include "emu/sim/host_network.hpp"

#include <doctest/doctest.h>

using namespace emu;
using fabricshm::kKiB;
using fabricshm::kMiB;

namespace {

const NetworkFigures kGigabit;

std::vector<int> hosts_of(int hosts, int ranks) {
    return std::vector<int>(static_cast<std::size_t>(hosts), ranks);
}

}  // namespace

TEST_SUITE("sim.host_network") {
    TEST_CASE("what was measured over 1 Gbit/s is met within 15 %") {
        // Medians of docs/perf/2026-11-23-hosts.md, two hosts of two ranks, tcp;ofi_rxm.
        const struct {
            fabricshm::Bytes bytes;
            Seconds measured;
        } cases[] = {{1 * kMiB, 8807e-6}, {8 * kMiB, 70233e-6}, {32 * kMiB, 281465e-6}};
        for (const auto& one : cases) {
            const Seconds simulated = cost_of_plan({2, 2}, one.bytes, kGigabit).time;
            CHECK(simulated == doctest::Approx(one.measured).epsilon(0.15));
        }
        // gloo's ring.
        const Seconds ring = cost_of_flat_ring({2, 2}, 8 * kMiB, kGigabit).time;
        CHECK(ring == doctest::Approx(105881e-6).epsilon(0.15));
    }

    TEST_CASE("two hosts send each byte once, more of them twice what the others reduce") {
        const double size = 16.0 * kMiB;
        for (const int ranks : {1, 2, 8}) {
            const NetworkCost two = cost_of_plan(hosts_of(2, ranks), 16 * kMiB, kGigabit);
            CHECK(two.wire == doctest::Approx(size));
            CHECK(two.steps == 1);
            for (const int hosts : {4, 8, 16}) {
                const NetworkCost many = cost_of_plan(hosts_of(hosts, ranks), 16 * kMiB, kGigabit);
                CHECK(many.wire == doctest::Approx(2 * size * (hosts - 1) / hosts).epsilon(0.05));
                CHECK(many.steps == 2);
            }
        }
    }

    TEST_CASE("along a ring hosts send as many bytes, in steps of one stripe") {
        const double size = 64.0 * kMiB;
        for (const int hosts : {3, 17, 40, 128}) {
            const NetworkCost ring = cost_of_plan(hosts_of(hosts, 2), 64 * kMiB, kGigabit, 3);
            CHECK(ring.wire == doctest::Approx(2 * size * (hosts - 1) / hosts).epsilon(0.05));
            CHECK(ring.steps == 2 * (hosts - 1));
            // A step takes its bytes, and the way of a message.
            CHECK(ring.time > ring.wire / kGigabit.bandwidth + ring.steps * kGigabit.latency);
            CHECK(ring.time < 2 * size / kGigabit.bandwidth * 1.5 +
                                  ring.messages * (kGigabit.latency + kGigabit.message));
            // Why it is not what groups do by themselves.
            const NetworkCost plan = cost_of_plan(hosts_of(hosts, 2), 64 * kMiB, kGigabit);
            CHECK(plan.steps == 2);
            CHECK(plan.time < ring.time);
        }
    }

    TEST_CASE("small buffers go from leader to leader") {
        const NetworkCost cost = cost_of_plan(hosts_of(5, 4), 4 * kKiB, kGigabit);
        CHECK(cost.messages == 4);
        CHECK(cost.wire == 4.0 * 4 * kKiB);
        CHECK(cost.steps == 1);
    }

    TEST_CASE("a flat ring sends nearly twice the bytes over each host's wire") {
        const NetworkCost ring = cost_of_flat_ring(hosts_of(2, 8), 16 * kMiB, kGigabit);
        CHECK(ring.wire == doctest::Approx(2.0 * 15 / 16 * 16 * kMiB));
        CHECK(ring.steps == 30);
    }

    TEST_CASE("hosts with other numbers of ranks send as many bytes") {
        const NetworkCost cost = cost_of_plan({4, 1, 2}, 16 * kMiB, kGigabit);
        CHECK(cost.wire == doctest::Approx(2.0 * 16 * kMiB * 2 / 3).epsilon(0.1));
        CHECK(cost.time > cost.wire / kGigabit.bandwidth);
    }

    TEST_CASE("a wire that is twice as wide takes half the time, until messages take it") {
        NetworkFigures wide = kGigabit;
        wide.bandwidth *= 2;
        const Seconds slow = cost_of_plan({2, 2}, 32 * kMiB, kGigabit).time;
        CHECK(cost_of_plan({2, 2}, 32 * kMiB, wide).time ==
              doctest::Approx(slow / 2).epsilon(0.05));
        wide.bandwidth = 1e15;
        wide.memory = 1e15;
        const NetworkCost bare = cost_of_plan(hosts_of(16, 2), 32 * kMiB, wide);
        CHECK(bare.time >= bare.messages * wide.message);
    }
}
