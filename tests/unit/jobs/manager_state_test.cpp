#include "fabricd/jobs/manager_state.hpp"

#include <doctest/doctest.h>

#include "fabricd/jobs/job_roster.hpp"

using namespace fabricd;
using fabricshm::kMiB;
using jobs::v1::ManagerState;

namespace {

struct Bench {
    Bench() {
        spec.name = "a";
        spec.groups = {{"cpu", 2, 8 * kMiB, "", 1}, {"gpu", 1, 0, "", 2}};
        nodes = {{"n1", 64 * kMiB, {{"c", "cpu", 1, 1 << 30}, {"g", "gpu", 2, 9, "removed"}}}};
        nodes[0].devices[1].fault = "";
        REQUIRE_FALSE(plan_job(spec, nodes, plan));
        nodes[0].devices[1].fault = "removed";
        put_plan(spec, nodes, plan, state);
    }
    bool is_taken(const ManagerState& from) const {
        JobSpec to = spec;
        std::vector<JobNode> found;
        JobPlan other;
        return take_plan(from, to, found, other);
    }

    JobSpec spec;
    std::vector<JobNode> nodes;
    JobPlan plan;
    ManagerState state;
};

}  // namespace

TEST_SUITE("jobs.manager_state") {
    TEST_CASE("plan, devices, ranks and agents come back as they were") {
        Bench bench;
        JobRoster roster;
        roster.assign(bench.plan);
        roster.ranks[0].attempt = 3;
        roster.ranks[1].is_done = true;
        roster.put(bench.state);
        JobSpec spec = bench.spec;
        spec.groups[0].pool = 1;
        std::vector<JobNode> nodes;
        JobPlan plan;
        REQUIRE(take_plan(bench.state, spec, nodes, plan));
        CHECK(spec.groups[0].pool == 8 * kMiB);
        CHECK(nodes[0].devices[1].fault == "removed");
        REQUIRE(plan.ranks.size() == 3);
        CHECK(plan.ranks[2].device == 1);
        CHECK(plan.ranks[1].local_rank == 1);
        CHECK(plan.agents.size() == 2);
        CHECK(plan.agents[0].ranks == std::vector<unsigned>{0, 1});
        JobRoster other;
        other.take(bench.state);
        other.assign(plan);
        CHECK(other.agents.size() == 2);
        CHECK(other.ranks[0].attempt == 3);
        CHECK(other.ranks[0].is_live);
        CHECK_FALSE(other.ranks[1].is_live);
        CHECK(other.ranks[2].agent == 1);
    }

    TEST_CASE("what does not fit together is no state") {
        const Bench bench;
        CHECK(bench.is_taken(bench.state));
        auto other = bench.state;
        other.mutable_ranks(0)->set_device(7);
        CHECK_FALSE(bench.is_taken(other));
        other = bench.state;
        other.mutable_ranks(0)->set_node(1);
        CHECK_FALSE(bench.is_taken(other));
        other = bench.state;
        other.mutable_ranks()->RemoveLast();
        CHECK_FALSE(bench.is_taken(other));
        other = bench.state;
        other.mutable_groups(0)->set_ranks(3);
        CHECK_FALSE(bench.is_taken(other));
        other = bench.state;
        other.add_servers(3);
        CHECK_FALSE(bench.is_taken(other));
        CHECK_FALSE(bench.is_taken({}));
        CHECK_FALSE(load_state("/nonexistent"));
    }
}
