// The oracle itself: that it finds what is wrong, and says nothing of what is right.

#include "emu/sim/cluster_oracle.hpp"

#include <doctest/doctest.h>

using namespace emu;

namespace {

constexpr Seconds kTtl = 5;

/// Host 0 with sessions of incarnation 7, seen by hosts 1 and 2.
ClusterOracle with_sessions() {
    ClusterOracle oracle(3, kTtl);
    for (int host = 0; host < 3; ++host) oracle.set_running(host, true);
    oracle.started_sessions(0, 7, 10);
    oracle.renewed(0, 7, 10);
    return oracle;
}

}  // namespace

TEST_SUITE("sim.cluster_oracle") {
    TEST_CASE(
        "memory that is granted while its sessions may write is a fault, afterwards is none") {
        ClusterOracle oracle = with_sessions();
        oracle.granted({0, 7}, 20);
        CHECK(oracle.fault_count() == 1);
        ClusterOracle ended = with_sessions();
        ended.ended_sessions(0);
        ended.granted({0, 7}, 20);
        CHECK(ended.fault_count() == 0);
        ended.started_sessions(0, 8, 21);
        CHECK(ended.fault_count() == 0);
        ended.started_sessions(0, 7, 22);
        CHECK(ended.fault_count() == 1);
    }

    TEST_CASE("a machine without power writes nothing, one that stands still may go on") {
        ClusterOracle off = with_sessions();
        off.set_power(0, false);
        off.granted({0, 7}, 20);
        CHECK(off.fault_count() == 0);
        ClusterOracle still = with_sessions();
        still.set_running(0, false);
        still.lost(1, {0, 7}, 30);
        CHECK(still.fault_count() == 0);
        still.granted({0, 7}, 30);
        CHECK(still.fault_count() == 1);
    }

    TEST_CASE("a host that holds its lease, or whose daemon runs, is not lost") {
        ClusterOracle held = with_sessions();
        held.set_running(0, false);
        held.lost(1, {0, 7}, 14.4);
        CHECK(held.fault_count() == 1);
        ClusterOracle runs = with_sessions();
        runs.lost(1, {0, 7}, 30);
        CHECK(runs.fault_count() == 1);
        // An incarnation before the one whose lease it is.
        ClusterOracle before = with_sessions();
        before.ended_sessions(0);
        before.started_sessions(0, 8, 11);
        before.renewed(0, 8, 11);
        before.lost(1, {0, 7}, 12);
        CHECK(before.fault_count() == 0);
    }

    TEST_CASE("a death that one host does not notice in time is a fault") {
        const auto bound = [](const HostLoss& loss) { return loss.renewed + 11; };
        for (const bool late : {false, true}) {
            ClusterOracle oracle = with_sessions();
            oracle.failed(0, 7, true, 10, 12);
            oracle.set_power(0, false);
            oracle.lost(1, {0, 7}, 21);
            oracle.fenced(2, {0, 7}, false, late ? 21.5 : 20);
            oracle.check_losses(bound);
            CHECK(oracle.fault_count() == (late ? 1 : 0));
            REQUIRE(oracle.losses().size() == 1);
            CHECK(oracle.losses()[0].losing == 2);
        }
        ClusterOracle unseen = with_sessions();
        unseen.failed(0, 7, true, 10, 12);
        unseen.set_power(0, false);
        unseen.lost(1, {0, 7}, 21);
        unseen.check_losses(bound);
        CHECK(unseen.fault_count() == 1);
    }
}
