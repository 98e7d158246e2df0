// The daemons' membership code through simulated failures, against an oracle that knows the
// machines.

#include "emu/sim/cluster_run.hpp"

#include <doctest/doctest.h>

#include "emu/sim/cluster_query.hpp"

using namespace emu;

namespace {

ClusterScenario scenario_of(int hosts, int failures, std::uint64_t seed) {
    ClusterScenario scenario;
    scenario.hosts = hosts;
    scenario.failures = failures;
    scenario.seed = seed;
    for (int kind = 0; kind < kFailureKinds; ++kind) {
        scenario.kinds.push_back(static_cast<FailureKind>(kind));
    }
    return scenario;
}

void expect_no_fault(const ClusterScenario& scenario) {
    const ClusterResult result = run_cluster(scenario);
    CAPTURE(scenario.hosts);
    CAPTURE(scenario.seed);
    CHECK(result.fault_count == 0);
    if (!result.faults.empty()) MESSAGE(result.faults.front());
}

}  // namespace

TEST_SUITE("sim.cluster_run") {
    TEST_CASE("the same scenario gives the same report, another seed another one") {
        ClusterQuery query{scenario_of(6, 7, 3), {6, 9}, 2};
        const std::string first = as_json(answer_cluster(query));
        CHECK(as_json(answer_cluster(query)) == first);
        query.scenario.seed = 4;
        CHECK(as_json(answer_cluster(query)) != first);
    }

    TEST_CASE("no failure makes the daemons break their rules") {
        constexpr int kRuns = 40;
        for (int seed = 1; seed <= kRuns; ++seed) {
            ClusterScenario scenario = scenario_of(2 + seed % 7, 9, static_cast<unsigned>(seed));
            scenario.has_fence_command = seed % 3 != 0;
            scenario.ttl = seed % 4 == 0 ? 2 : 5;
            if (seed % 5 == 0) scenario.etcd = etcd_of_one();
            expect_no_fault(scenario);
        }
    }

    TEST_CASE("each kind of failure alone, and often") {
        for (int kind = 0; kind < kFailureKinds; ++kind) {
            CAPTURE(name_of_failure(kind));
            ClusterScenario scenario = scenario_of(5, 12, 1);
            scenario.kinds = {static_cast<FailureKind>(kind)};
            expect_no_fault(scenario);
        }
    }

    TEST_CASE("hosts that are started after etcd was restored from a snapshot are known to live") {
        for (std::uint64_t seed = 1; seed <= 40; ++seed) {
            // So that hosts begin between a snapshot and its return, and again after it.
            ClusterScenario scenario = scenario_of(8, 16, seed);
            scenario.kinds = {FailureKind::kDeath, FailureKind::kDeath, FailureKind::kDeath,
                              FailureKind::kRestore};
            scenario.ttl = 2;
            scenario.reboot = 0.5 + static_cast<double>(seed % 4);
            expect_no_fault(scenario);
        }
    }

    TEST_CASE("memory that is granted when its host is lost, and not fenced, is found") {
        int found = 0;
        for (std::uint64_t seed = 1; seed <= 5; ++seed) {
            ClusterScenario scenario = scenario_of(4, 6, seed);
            scenario.kinds = {FailureKind::kPause};
            CHECK(run_cluster(scenario).fault_count == 0);
            scenario.grants_when_lost = true;
            found += run_cluster(scenario).fault_count > 0 ? 1 : 0;
        }
        CHECK(found >= 4);
    }

    TEST_CASE("an idle cluster costs three renewals a lease, and no write") {
        const ClusterResult result = run_cluster(scenario_of(16, 0, 1));
        const double renewals = static_cast<double>(result.idle.keeps) / result.idle_s / 16;
        CHECK(renewals == doctest::Approx(0.6).epsilon(0.05));
        CHECK(result.idle.requests() == result.idle.keeps);
        CHECK(result.idle.events == 0);
        CHECK(result.self_fences == 0);
    }

    TEST_CASE("a death is suspected after a lease, and lost after another one and a second") {
        ClusterScenario scenario = scenario_of(12, 6, 1);
        scenario.kinds = {FailureKind::kDeath};
        const ClusterResult result = run_cluster(scenario);
        CHECK(result.fault_count == 0);
        REQUIRE(result.losses.size() == 6);
        for (const HostLoss& loss : result.losses) {
            CHECK(loss.suspecting == result.observers);
            CHECK(loss.last_suspect >= loss.renewed + 5);
            CHECK(loss.last_suspect <= loss.renewed + 5 + 0.5 + 0.1);
            CHECK(loss.losing == result.observers);
            CHECK(loss.last_lost >= loss.last_suspect + 5.9);
            CHECK(loss.last_lost <= loss.renewed + 11 + 0.5 + 0.3);
            CHECK(loss.fencing == result.observers);
        }
    }

    TEST_CASE("etcd that is away for longer than a lease ends it by each host's own clock") {
        ClusterScenario scenario = scenario_of(6, 1, 1);
        scenario.kinds = {FailureKind::kDown};
        const ClusterResult result = run_cluster(scenario);
        CHECK(result.fault_count == 0);
        CHECK(result.self_fences == 6);
        scenario.kinds = {FailureKind::kData};
        CHECK(run_cluster(scenario).self_fences == 0);
    }
}
