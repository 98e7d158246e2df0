#include "fabricd/jobs/job_repair.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

using namespace fabricd;
using fabricshm::kGiB;
using fabricshm::kMiB;

namespace {

/// Three GPUs and a CPU; one rank of a group on each GPU, and one on the CPU.
struct Bench {
    Bench() {
        spec.name = "a";
        spec.script = "a.py";
        spec.groups = {{"gpu", 3, 300 * kMiB, "", 4}, {"cpu", 1, 0, "", 7}};
        nodes = {{"n1",
                  16 * kGiB,
                  {{"gpu0", "gpu", 4, kGiB, ""},
                   {"gpu1", "gpu", 4, kGiB, ""},
                   {"gpu2", "gpu", 2, kGiB, ""},
                   {"cpu0", "cpu", 1, kGiB, ""}}}};
        REQUIRE_FALSE(plan_job(spec, nodes, plan));
    }

    NextAttempt next(std::optional<unsigned> left_out = {}) const {
        auto planned = plan_attempt(spec, nodes, plan, left_out);
        INFO(planned.problem);
        REQUIRE(planned.next);
        return std::move(*planned.next);
    }

    JobSpec spec;
    std::vector<JobNode> nodes;
    JobPlan plan;
};

std::vector<std::string> names(const std::vector<JobNode>& nodes, const JobPlan& plan) {
    std::vector<std::string> all;
    for (const PlacedRank& rank : plan.ranks) {
        all.push_back(nodes[rank.node].devices[rank.device].name);
    }
    return all;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_SUITE("jobs.job_repair") {
    TEST_CASE("restarts come first, then fewer ranks, then the end") {
        Bench bench;
        const auto of = [&](unsigned restarts) {
            return repair_of(bench.spec, bench.nodes, bench.plan, 1, restarts);
        };
        CHECK(of(0) == JobRepair::kEnd);
        bench.spec.max_restarts = 2;
        CHECK(of(1) == JobRepair::kRestartAll);
        CHECK(of(2) == JobRepair::kEnd);
        bench.spec.min_ranks = 3;
        CHECK(of(2) == JobRepair::kShrink);
        bench.spec.min_ranks = 4;
        CHECK(of(2) == JobRepair::kEnd);
        bench.spec.restart = JobRestart::kRank;
        CHECK(of(0) == JobRepair::kRestartRank);
    }

    TEST_CASE("a rank does not come back alone to a device with a fault") {
        Bench bench;
        bench.spec.restart = JobRestart::kRank;
        bench.spec.max_restarts = 1;
        bench.nodes[0].devices[1].fault = "faulty: ecc";
        CHECK(repair_of(bench.spec, bench.nodes, bench.plan, 0, 0) == JobRepair::kRestartRank);
        CHECK(repair_of(bench.spec, bench.nodes, bench.plan, 1, 0) == JobRepair::kRestartAll);
    }

    TEST_CASE("with sound devices the next attempt is as the last one") {
        const Bench bench;
        const auto next = bench.next();
        CHECK(next.change.empty());
        CHECK(names(bench.nodes, next.plan) == Names{"gpu0", "gpu1", "gpu2", "cpu0"});
    }

    TEST_CASE("ranks of a faulty device go to sound ones of their kind, with the reason") {
        Bench bench;
        bench.nodes[0].devices[1].fault = "faulty: ecc";
        const auto next = bench.next();
        CHECK(names(bench.nodes, next.plan) == Names{"gpu0", "gpu0", "gpu2", "cpu0"});
        CHECK(next.change == "device gpu1 is faulty: ecc; rank 1 moves from gpu1 to gpu0");
        CHECK(next.plan.ranks[1].speed == 2.0);  // half of gpu0
        CHECK(next.spec.ranks() == 4);
    }

    TEST_CASE("a fault of a device without ranks changes nothing") {
        Bench bench;
        bench.spec.groups[0].ranks = 2;
        REQUIRE_FALSE(plan_job(bench.spec, bench.nodes, bench.plan));
        bench.nodes[0].devices[2].fault = "removed";
        CHECK(bench.next().change.empty());
    }

    TEST_CASE("without room elsewhere the job goes on with the ranks that fit, or ends") {
        Bench bench;
        bench.spec.groups[0].pool = 3 * kGiB;  // one rank fills a GPU
        bench.nodes[0].devices[0].fault = "removed";
        const auto none = plan_attempt(bench.spec, bench.nodes, bench.plan, {});
        CHECK_FALSE(none.next);
        CHECK(none.problem ==
              "device gpu0 is removed; group of kind gpu (line 4): 2 of 3 ranks fit: each takes 1 "
              "GiB of the pool, and at most 0 B is free for one");
        bench.spec.min_ranks = 3;
        const auto next = bench.next();
        CHECK(names(bench.nodes, next.plan) == Names{"gpu1", "gpu2", "cpu0"});
        CHECK(next.change == "device gpu0 is removed; the job goes on with 3 of 4 ranks");
        CHECK(next.spec.pool() == 2 * kGiB);
        for (const PlacedRank& rank : next.plan.ranks) CHECK(rank.share == doctest::Approx(1 / 3.));
        bench.spec.min_ranks = 4;
        CHECK(plan_attempt(bench.spec, bench.nodes, bench.plan, {})
                  .problem.ends_with("(min_ranks is 4)"));
    }

    TEST_CASE("a group without a device goes when the others suffice, and keeps its number") {
        Bench bench;
        bench.spec.min_ranks = 1;
        for (int gpu = 0; gpu < 3; ++gpu) bench.nodes[0].devices[gpu].fault = "faulty: xid";
        const auto next = bench.next();
        CHECK(names(bench.nodes, next.plan) == Names{"cpu0"});
        CHECK(next.plan.ranks[0].group == 1);
        CHECK(next.plan.agents.size() == 1);
        CHECK(next.spec.groups[0].ranks == 0);
        bench.nodes[0].devices[3].fault = "removed";
        CHECK(plan_attempt(next.spec, bench.nodes, next.plan, {})
                  .problem.find("no device of that kind works: cpu0 (removed)") !=
              std::string::npos);
    }

    TEST_CASE("a rank that is left out leaves the others where they are") {
        Bench bench;
        bench.spec.min_ranks = 1;
        bench.spec.schedule = JobSchedule::kByResource;
        bench.spec.strategy = JobStrategy::kParameterServer;
        bench.spec.servers = 4;
        REQUIRE_FALSE(plan_job(bench.spec, bench.nodes, bench.plan));
        const auto next = bench.next(0);
        CHECK(names(bench.nodes, next.plan) == Names{"gpu1", "gpu2", "cpu0"});
        CHECK(next.change == "the job goes on with 3 of 4 ranks");
        CHECK(next.plan.ranks[0].share == doctest::Approx(4 / 7.));
        CHECK(next.plan.ranks[0].local_rank == 0);
        CHECK(next.plan.servers == std::vector<unsigned>{0, 1, 2});
        CHECK(next.spec.groups[0].pool == 200 * kMiB);
    }

    TEST_CASE("whatever fails, an attempt has sound devices, enough ranks and whole shares") {
        std::mt19937 random(11);
        for (int round = 0; round < 2000; ++round) {
            Bench bench;
            bench.spec.min_ranks = 1 + random() % 4;
            bench.spec.groups[0].pool = random() % 2 * 2 * kGiB;
            if (random() % 2 != 0) bench.spec.schedule = JobSchedule::kByResource;
            if (plan_job(bench.spec, bench.nodes, bench.plan)) continue;
            for (int step = 0; step < 6; ++step) {
                for (auto& device : bench.nodes[0].devices) {
                    device.fault = random() % 4 == 0 ? "removed" : "";
                }
                std::optional<unsigned> left_out;
                if (random() % 3 == 0 && bench.spec.ranks() > bench.spec.min_ranks) {
                    left_out = random() % bench.plan.ranks.size();
                }
                const auto planned = plan_attempt(bench.spec, bench.nodes, bench.plan, left_out);
                CHECK(planned.next.has_value() == planned.problem.empty());
                if (!planned.next) break;
                const auto& next = *planned.next;
                CHECK(next.plan.ranks.size() == next.spec.ranks());
                CHECK(next.spec.ranks() >= bench.spec.min_ranks);
                CHECK(next.spec.ranks() <= bench.spec.ranks() - (left_out ? 1 : 0));
                double shares = 0.0;
                std::map<std::string, std::set<unsigned>> on;
                for (const PlacedRank& rank : next.plan.ranks) {
                    CHECK(bench.nodes[0].devices[rank.device].fault.empty());
                    CHECK(bench.nodes[0].devices[rank.device].kind ==
                          bench.spec.groups[rank.group].kind);
                    shares += rank.share;
                }
                CHECK(shares == doctest::Approx(1.0));
                std::size_t of_agents = 0;
                for (const PlacedAgent& agent : next.plan.agents) of_agents += agent.ranks.size();
                CHECK(of_agents == next.plan.ranks.size());
                bench.spec = next.spec;
                bench.plan = next.plan;
            }
        }
    }

    TEST_CASE("changes of devices with ranks are said once, and a thermal fault moves none") {
        Bench bench;
        DeviceHealth health;
        using Look = std::vector<DeviceState>;
        const auto look = [&](const Look& states) {
            std::vector<std::string> all;
            for (const auto& one : health.update(bench.nodes[0], 0, bench.plan, states)) {
                all.push_back(change_text(bench.nodes[0], one) +
                              (one.is_serious ? " (serious)" : ""));
            }
            return all;
        };
        const Look well = {{"gpu0", ""}, {"gpu1", ""}, {"gpu2", ""}, {"cpu0", ""}};
        CHECK(look(well).empty());
        Look now = well;
        now[0].faults = "thermal";
        CHECK(look(now) == Names{"device gpu0 of rank 0 is faulty: thermal"});
        CHECK(look(now).empty());
        CHECK(bench.nodes[0].devices[0].fault.empty());
        now[0].faults = "ecc,thermal";
        CHECK(look(now) == Names{"device gpu0 of rank 0 is faulty: ecc,thermal (serious)"});
        CHECK(bench.nodes[0].devices[0].fault == "faulty: ecc,thermal");
        now.pop_back();
        CHECK(look(now) == Names{"device cpu0 of rank 3 is removed (serious)"});
        CHECK(look(well) ==
              Names{"device gpu0 of rank 0 works again", "device cpu0 of rank 3 works again"});
        CHECK(bench.nodes[0].devices[0].fault.empty());
        bench.plan.ranks[0].device = 1;
        CHECK(look({{"gpu0", "xid"}, {"gpu1", "xid"}, {"gpu2", ""}, {"cpu0", ""}}) ==
              Names{"device gpu1 of ranks 0, 1 is faulty: xid (serious)"});
        CHECK(bench.nodes[0].devices[0].fault == "faulty: xid");
    }
}
