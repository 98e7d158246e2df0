#include "fabricd/jobs/job_plan.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>

using namespace fabricd;
using fabricshm::kGiB;
using fabricshm::kMiB;

namespace {

JobGroup group_of(const char* kind, unsigned ranks, Bytes pool = 0, const char* constraint = "") {
    return {kind, ranks, pool, constraint, 1};
}

JobSpec spec_of(std::vector<JobGroup> groups, JobSchedule schedule = JobSchedule::kEven) {
    JobSpec spec;
    spec.name = "a";
    spec.script = "a.py";
    spec.groups = std::move(groups);
    spec.schedule = schedule;
    return spec;
}

JobNode node_of(std::vector<JobDevice> devices, Bytes pool = 1024 * kGiB) {
    return {"n1", pool, std::move(devices)};
}

JobPlan planned(const JobSpec& spec, const std::vector<JobNode>& nodes) {
    JobPlan plan;
    const auto problem = plan_job(spec, nodes, plan);
    INFO(problem.value_or(""));
    REQUIRE_FALSE(problem);
    return plan;
}

std::string refusal(const JobSpec& spec, const std::vector<JobNode>& nodes) {
    JobPlan plan;
    const std::string problem = plan_job(spec, nodes, plan).value_or("");
    CHECK(plan.ranks.empty());
    return problem;
}

std::vector<std::size_t> devices_of(const JobPlan& plan) {
    std::vector<std::size_t> devices;
    for (const PlacedRank& rank : plan.ranks) devices.push_back(rank.device);
    return devices;
}

/// Samples per second of a job in which all wait for the slowest rank.
double throughput(const std::vector<double>& speeds, const std::vector<unsigned>& cut) {
    double slowest = 0.0;
    for (std::size_t rank = 0; rank < cut.size(); ++rank) {
        slowest = std::max(slowest, cut[rank] / speeds[rank]);
    }
    return std::accumulate(cut.begin(), cut.end(), 0.0) / slowest;
}

double throughput(const JobPlan& plan, unsigned batch) {
    std::vector<double> speeds, shares;
    for (const PlacedRank& rank : plan.ranks) {
        speeds.push_back(rank.speed);
        shares.push_back(rank.share);
    }
    return throughput(speeds, cut_batch(shares, batch));
}

struct RandomCase {
    JobSpec spec;
    std::vector<JobNode> nodes;
};

RandomCase random_case(std::mt19937& random, unsigned groups_max, unsigned ranks_max) {
    const char* kinds[] = {"cpu", "gpu"};
    const auto pick = [&](unsigned low, unsigned high) {
        return std::uniform_int_distribution<unsigned>(low, high)(random);
    };
    RandomCase made;
    const unsigned nodes = pick(1, 2);
    for (unsigned node = 0; node < nodes; ++node) {
        made.nodes.push_back({"n" + std::to_string(node), pick(0, 8) * kGiB, {}});
        const unsigned devices = pick(1, 4);
        for (unsigned device = 0; device < devices; ++device) {
            made.nodes.back().devices.push_back({"d" + std::to_string(device), kinds[pick(0, 1)],
                                                 0.25 * pick(1, 8), pick(0, 4) * kGiB});
        }
    }
    const unsigned groups = pick(1, groups_max);
    for (unsigned group = 0; group < groups; ++group) {
        made.spec.groups.push_back(
            group_of(kinds[pick(0, 1)], pick(1, ranks_max), pick(0, 4) * kGiB));
    }
    made.spec.schedule = pick(0, 1) != 0 ? JobSchedule::kByResource : JobSchedule::kEven;
    return made;
}

// What any plan has to keep, computed from the plan alone.
void check_plan(const RandomCase& one, const JobPlan& plan) {
    REQUIRE(plan.ranks.size() == one.spec.ranks());
    std::vector<std::vector<Bytes>> taken(one.nodes.size());
    std::vector<Bytes> pools(one.nodes.size());
    for (std::size_t node = 0; node < one.nodes.size(); ++node) {
        taken[node].resize(one.nodes[node].devices.size());
    }
    double shares = 0.0;
    std::vector<unsigned> of_group(one.spec.groups.size());
    std::vector<std::set<unsigned>> locals(one.nodes.size());
    for (const PlacedRank& rank : plan.ranks) {
        const JobGroup& group = one.spec.groups[rank.group];
        const JobDevice& device = one.nodes[rank.node].devices[rank.device];
        CHECK(device.kind == group.kind);
        taken[rank.node][rank.device] += (group.pool + group.ranks - 1) / group.ranks;
        pools[rank.node] += (group.pool + group.ranks - 1) / group.ranks;
        ++of_group[rank.group];
        CHECK(locals[rank.node].insert(rank.local_rank).second);
        CHECK(rank.share > 0.0);
        shares += rank.share;
    }
    CHECK(shares == doctest::Approx(1.0));
    for (std::size_t group = 0; group < of_group.size(); ++group) {
        CHECK(of_group[group] == one.spec.groups[group].ranks);
    }
    for (std::size_t node = 0; node < one.nodes.size(); ++node) {
        CHECK(pools[node] <= one.nodes[node].pool_free);
        if (!locals[node].empty()) CHECK(*locals[node].rbegin() + 1 == locals[node].size());
        for (std::size_t device = 0; device < taken[node].size(); ++device) {
            CHECK(taken[node][device] <= one.nodes[node].devices[device].free);
        }
    }
    std::vector<unsigned> started;
    for (const PlacedAgent& agent : plan.agents) {
        for (const unsigned rank : agent.ranks) {
            CHECK(plan.ranks[rank].group == agent.group);
            CHECK(plan.ranks[rank].node == agent.node);
            started.push_back(rank);
        }
    }
    std::vector<unsigned> all(plan.ranks.size());
    std::iota(all.begin(), all.end(), 0U);
    CHECK(started == all);
}

/// The largest sum of the speeds of devices with a rank, over all ways to place one group; -1 when
/// there is none.
double best_sum(const JobGroup& group, const std::vector<JobNode>& nodes) {
    const Bytes need = (group.pool + group.ranks - 1) / group.ranks;
    struct Free {
        std::size_t node;
        double speed;
        Bytes bytes;
        unsigned ranks;
    };
    std::vector<Free> devices;
    std::vector<Bytes> pools;
    for (std::size_t node = 0; node < nodes.size(); ++node) {
        pools.push_back(nodes[node].pool_free);
        for (const JobDevice& device : nodes[node].devices) {
            if (device.kind == group.kind) devices.push_back({node, device.speed, device.free, 0});
        }
    }
    double best = -1.0;
    const std::function<void(unsigned, std::size_t)> place = [&](unsigned left, std::size_t from) {
        if (left == 0) {
            double sum = 0.0;
            for (const Free& device : devices) sum += device.ranks > 0 ? device.speed : 0.0;
            best = std::max(best, sum);
            return;
        }
        for (std::size_t at = from; at < devices.size(); ++at) {
            Free& device = devices[at];
            if (device.bytes < need || pools[device.node] < need) continue;
            device.bytes -= need;
            pools[device.node] -= need;
            ++device.ranks;
            place(left - 1, at);
            --device.ranks;
            pools[device.node] += need;
            device.bytes += need;
        }
    };
    place(group.ranks, 0);
    return best;
}

}  // namespace

TEST_SUITE("jobs.job_plan") {
    TEST_CASE("even puts as many ranks on each device and gives them equal shares") {
        const auto nodes = {node_of({{"a", "gpu", 4, kGiB}, {"b", "gpu", 1, kGiB}})};
        const auto plan = planned(spec_of({group_of("gpu", 4)}), nodes);
        CHECK(devices_of(plan) == std::vector<std::size_t>{0, 0, 1, 1});
        for (const PlacedRank& rank : plan.ranks) CHECK(rank.share == 0.25);
        CHECK(plan.ranks[3].local_rank == 3);
        CHECK(plan.servers.empty());
        CHECK(plan.agents.size() == 1);
    }

    TEST_CASE("by resource takes the fastest free devices first, then those with most room") {
        const auto nodes = {node_of({{"a", "gpu", 1, kGiB},
                                     {"b", "gpu", 4, kGiB},
                                     {"c", "gpu", 4, 2 * kGiB},
                                     {"d", "gpu", 2, kGiB}})};
        const auto by_resource = JobSchedule::kByResource;
        CHECK(devices_of(planned(spec_of({group_of("gpu", 1)}, by_resource), nodes)) ==
              std::vector<std::size_t>{2});
        CHECK(devices_of(planned(spec_of({group_of("gpu", 3)}, by_resource), nodes)) ==
              std::vector<std::size_t>{1, 2, 3});
        // The fifth computes most on half of a fast one.
        CHECK(devices_of(planned(spec_of({group_of("gpu", 5)}, by_resource), nodes)) ==
              std::vector<std::size_t>{0, 1, 2, 2, 3});
    }

    TEST_CASE("by resource reaches nine tenths of what unequal devices compute together") {
        const auto nodes = {node_of({{"a", "gpu", 1, kGiB},
                                     {"b", "gpu", 1, kGiB},
                                     {"c", "gpu", 0.5, kGiB},
                                     {"d", "gpu", 0.25, kGiB}})};
        constexpr double kIdeal = 2.75;
        const auto even = planned(spec_of({group_of("gpu", 4)}), nodes);
        const auto by_resource =
            planned(spec_of({group_of("gpu", 4)}, JobSchedule::kByResource), nodes);
        for (const unsigned batch : {32U, 64U, 100U, 256U}) {
            CHECK(throughput(by_resource, batch) >= 0.9 * kIdeal);
            CHECK(throughput(even, batch) <= 1.0);
        }
        double ideal = 0.0;
        for (const PlacedRank& rank : by_resource.ranks) ideal += rank.speed;
        CHECK(ideal == kIdeal);
    }

    TEST_CASE("a split of the data decides shares, whatever the schedule decides about places") {
        const auto nodes = {node_of({{"a", "gpu", 3, kGiB}, {"b", "gpu", 1, kGiB}})};
        JobSpec spec = spec_of({group_of("gpu", 2)});
        spec.data.split = JobSplit::kWeighted;
        CHECK(planned(spec, nodes).ranks[0].share == 0.75);
        spec.schedule = JobSchedule::kByResource;
        spec.data.split = JobSplit::kEven;
        CHECK(planned(spec, nodes).ranks[0].share == 0.5);
        spec.data.split = JobSplit::kBySchedule;
        CHECK(planned(spec, nodes).ranks[0].share == 0.75);
    }

    TEST_CASE("groups take devices of their kind, and each has an agent") {
        const auto nodes = {node_of({{"c", "cpu", 1, kGiB}, {"g", "gpu", 8, kGiB}})};
        const auto plan = planned(
            spec_of({group_of("gpu", 2, kGiB), group_of("cpu", 1)}, JobSchedule::kByResource),
            nodes);
        CHECK(devices_of(plan) == std::vector<std::size_t>{1, 1, 0});
        REQUIRE(plan.agents.size() == 2);
        CHECK(plan.agents[0].ranks == std::vector<unsigned>{0, 1});
        CHECK(plan.agents[1].ranks == std::vector<unsigned>{2});
        CHECK(plan.ranks[0].share == doctest::Approx(4.0 / 9));
        CHECK(plan.ranks[2].share == doctest::Approx(1.0 / 9));
    }

    TEST_CASE("a constrained group chooses before one that any device suits") {
        const auto nodes = {node_of({{"a100", "gpu", 8, kGiB}, {"t4", "gpu", 1, kGiB}})};
        const auto plan =
            planned(spec_of({group_of("gpu", 1, kGiB), group_of("gpu", 1, kGiB, "a*")},
                            JobSchedule::kByResource),
                    nodes);
        CHECK(devices_of(plan) == std::vector<std::size_t>{1, 0});
    }

    TEST_CASE("servers are the fastest ranks, or the first of equal ones") {
        const auto nodes = {node_of({{"a", "gpu", 1, kGiB}, {"b", "gpu", 4, kGiB}})};
        JobSpec spec = spec_of({group_of("gpu", 2)}, JobSchedule::kByResource);
        spec.strategy = JobStrategy::kParameterServer;
        spec.servers = 1;
        CHECK(planned(spec, nodes).servers == std::vector<unsigned>{1});
        spec.schedule = JobSchedule::kEven;
        CHECK(planned(spec, nodes).servers == std::vector<unsigned>{0});
    }

    TEST_CASE("what does not fit is one line with the group and the reason") {
        const auto nodes = {node_of({{"c", "cpu", 1, kGiB}}, 512 * kMiB)};
        CHECK(refusal(spec_of({group_of("gpu", 1)}), nodes) ==
              "group of kind gpu (line 1): there is no device of that kind; there are: cpu");
        CHECK(refusal(spec_of({group_of("cpu", 1, 0, "x*")}), nodes) ==
              "group of kind cpu (line 1): no device's name matches \"x*\"; there are: c");
        CHECK(refusal(spec_of({group_of("cpu", 3, 900 * kMiB)}), nodes) ==
              "group of kind cpu (line 1): 1 of 3 ranks fit: each takes 300 MiB of the pool, and "
              "at most 212 MiB is free for one");
        CHECK(refusal(spec_of({group_of("cpu", 1)}), {}) ==
              "group of kind cpu (line 1): there is no device of that kind; there are: none");
    }

    TEST_CASE("every plan keeps to kinds, memory, numbering and shares") {
        std::mt19937 random(1);
        unsigned placed = 0;
        for (int round = 0; round < 2000; ++round) {
            const RandomCase one = random_case(random, 3, 6);
            JobPlan plan;
            if (plan_job(one.spec, one.nodes, plan)) continue;
            ++placed;
            check_plan(one, plan);
        }
        CHECK(placed > 500);
    }

    TEST_CASE("one group is placed whenever it fits, by resource as well as can be") {
        std::mt19937 random(2);
        for (int round = 0; round < 2000; ++round) {
            const RandomCase one = random_case(random, 1, 5);
            const double best = best_sum(one.spec.groups[0], one.nodes);
            JobPlan plan;
            const bool fits = !plan_job(one.spec, one.nodes, plan);
            REQUIRE(fits == (best >= 0.0));
            if (!fits || one.spec.schedule == JobSchedule::kEven) continue;
            double sum = 0.0;
            for (const PlacedRank& rank : plan.ranks) sum += rank.speed;
            REQUIRE(sum == doctest::Approx(best));
        }
    }

    TEST_CASE("a batch is cut into whole samples that add up, none off by one") {
        std::mt19937 random(3);
        for (int round = 0; round < 500; ++round) {
            std::vector<double> shares(1 + random() % 8);
            for (double& share : shares) share = 1 + random() % 100;
            const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
            for (double& share : shares) share /= all;
            const unsigned batch = random() % 300;
            const auto cut = cut_batch(shares, batch);
            CHECK(std::accumulate(cut.begin(), cut.end(), 0U) == batch);
            for (std::size_t rank = 0; rank < cut.size(); ++rank) {
                CHECK(std::abs(cut[rank] - shares[rank] * batch) < 1.0 + 1e-9);
            }
        }
    }
}
