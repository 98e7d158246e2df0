#include "fabricd/jobs/job_plan.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

using fabricshm::format_bytes;

/// A device with what this job has put on it so far.
struct Place {
    std::size_t node;
    std::size_t device;
    unsigned ranks = 0;        // of all groups
    unsigned group_ranks = 0;  // of the group that is being placed
    Bytes taken = 0;
};

class Placement {
  public:
    Placement(const JobSpec& spec, const std::vector<JobNode>& nodes)
        : spec_(spec), nodes_(nodes), pool_taken_(nodes.size()) {
        for (std::size_t node = 0; node < nodes.size(); ++node) {
            for (std::size_t device = 0; device < nodes[node].devices.size(); ++device) {
                places_.push_back({node, device});
            }
        }
        where_.resize(spec.groups.size());
    }

    std::optional<JobMisfit> place_all() {
        std::vector<std::size_t> order(spec_.groups.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            const auto few_a = suited(spec_.groups[a]);
            const auto few_b = suited(spec_.groups[b]);
            if (few_a != few_b) return few_a < few_b;
            return need(spec_.groups[a]) > need(spec_.groups[b]);
        });
        for (const std::size_t group : order) {
            if (auto problem = place_group(group)) return problem;
        }
        return {};
    }

    /// Where the ranks of `plan` are, but for one.
    void take(const JobPlan& plan, unsigned left_out);

    JobPlan plan() const;

  private:
    const JobDevice& device(const Place& place) const {
        return nodes_[place.node].devices[place.device];
    }
    bool suits(const JobGroup& group, const Place& place) const {
        const JobDevice& one = device(place);
        if (one.kind != group.kind || !one.fault.empty()) return false;
        const char* pattern = group.constraint.c_str();
        return group.constraint.empty() || ::fnmatch(pattern, one.name.c_str(), 0) == 0;
    }
    std::size_t suited(const JobGroup& group) const {
        return static_cast<std::size_t>(
            std::count_if(places_.begin(), places_.end(),
                          [&](const Place& place) { return suits(group, place); }));
    }
    /// Of one rank.
    static Bytes need(const JobGroup& group) {
        return group.ranks == 0 ? 0 : (group.pool + group.ranks - 1) / group.ranks;
    }

    Bytes room(const Place& place) const {
        const Bytes of_device = device(place).free - std::min(device(place).free, place.taken);
        const Bytes of_pool = nodes_[place.node].pool_free;
        return std::min(of_device, of_pool - std::min(of_pool, pool_taken_[place.node]));
    }
    /// Whether the next rank goes to `a` rather than to `b`.
    bool is_better(const Place& a, const Place& b) const;
    std::optional<JobMisfit> place_group(std::size_t group);
    std::string problem_of(const JobGroup& group, unsigned placed) const;

    const JobSpec& spec_;
    const std::vector<JobNode>& nodes_;
    std::vector<Place> places_;
    std::vector<Bytes> pool_taken_;
    std::vector<std::vector<std::size_t>> where_;  // by group: the place of each of its ranks
};

bool Placement::is_better(const Place& a, const Place& b) const {
    if (spec_.schedule == JobSchedule::kEven) {
        if (a.group_ranks != b.group_ranks) return a.group_ranks < b.group_ranks;
        return a.ranks < b.ranks;
    }
    // A second rank on a device adds nothing to what the devices compute together: an empty one,
    // however slow, comes first.
    if ((a.ranks == 0) != (b.ranks == 0)) return a.ranks == 0;
    const double speed_a = device(a).speed / (a.ranks + 1);
    const double speed_b = device(b).speed / (b.ranks + 1);
    if (speed_a != speed_b) return speed_a > speed_b;
    return room(a) > room(b);
}

std::optional<JobMisfit> Placement::place_group(std::size_t number) {
    const JobGroup& group = spec_.groups[number];
    for (Place& place : places_) place.group_ranks = 0;
    for (unsigned rank = 0; rank < group.ranks; ++rank) {
        Place* best = nullptr;
        for (Place& place : places_) {
            if (!suits(group, place) || room(place) < need(group)) continue;
            if (best == nullptr || is_better(place, *best)) best = &place;
        }
        if (best == nullptr) return JobMisfit{number, rank, problem_of(group, rank)};
        ++best->ranks;
        ++best->group_ranks;
        best->taken += need(group);
        pool_taken_[best->node] += need(group);
        where_[number].push_back(static_cast<std::size_t>(best - places_.data()));
    }
    std::sort(where_[number].begin(), where_[number].end());
    return {};
}

void Placement::take(const JobPlan& plan, unsigned left_out) {
    for (unsigned rank = 0; rank < plan.ranks.size(); ++rank) {
        const PlacedRank& one = plan.ranks[rank];
        if (rank == left_out) continue;
        const auto place = std::find_if(places_.begin(), places_.end(), [&](const Place& here) {
            return here.node == one.node && here.device == one.device;
        });
        FABRIC_CHECK(place != places_.end());
        ++place->ranks;
        where_[one.group].push_back(static_cast<std::size_t>(place - places_.begin()));
    }
}

std::string Placement::problem_of(const JobGroup& group, unsigned placed) const {
    const std::string name =
        "group of kind " + group.kind + " (line " + std::to_string(group.line) + "): ";
    std::string kinds;
    std::string names;
    Bytes most = 0;
    bool is_any_sound = false;
    for (const Place& place : places_) {
        const JobDevice& one = device(place);
        if (kinds.find(one.kind) == std::string::npos)
            kinds += (kinds.empty() ? "" : ", ") + one.kind;
        if (one.kind == group.kind) {
            names += (names.empty() ? "" : ", ") + one.name;
            if (!one.fault.empty()) names += " (" + one.fault + ")";
            is_any_sound = is_any_sound || one.fault.empty();
        }
        if (suits(group, place)) most = std::max(most, room(place));
    }
    if (names.empty()) {
        return name +
               "there is no device of that kind; there are: " + (kinds.empty() ? "none" : kinds);
    }
    if (!is_any_sound) return name + "no device of that kind works: " + names;
    if (suited(group) == 0) {
        return name + "no device's name matches \"" + group.constraint + "\"; there are: " + names;
    }
    return name + std::to_string(placed) + " of " + std::to_string(group.ranks) +
           " ranks fit: each takes " + format_bytes(need(group)) + " of the pool, and at most " +
           format_bytes(most) + " is free for one";
}

JobPlan Placement::plan() const {
    JobPlan plan;
    std::vector<unsigned> local(nodes_.size());
    for (unsigned group = 0; group < where_.size(); ++group) {
        for (const std::size_t at : where_[group]) {
            const Place& place = places_[at];
            const auto rank = static_cast<unsigned>(plan.ranks.size());
            const double speed = device(place).speed / place.ranks;
            plan.ranks.push_back({group, place.node, place.device, local[place.node]++, speed});
            const bool is_next = plan.agents.empty() || plan.agents.back().group != group ||
                                 plan.agents.back().node != place.node;
            if (is_next) plan.agents.push_back({group, place.node, {}});
            plan.agents.back().ranks.push_back(rank);
        }
    }
    FABRIC_CHECK(plan.ranks.size() == spec_.ranks());
    double all = 0.0;
    for (const PlacedRank& rank : plan.ranks) all += rank.speed;
    const bool is_known = all > 0.0;
    for (PlacedRank& rank : plan.ranks) {
        rank.share = is_known && spec_.splits_by_speed()
                         ? rank.speed / all
                         : 1.0 / static_cast<double>(plan.ranks.size());
    }
    plan.manager_node = plan.ranks.front().node;
    // A server's work is memory bandwidth, and grows with the part that it owns: the fastest ranks.
    plan.servers.resize(plan.ranks.size());
    std::iota(plan.servers.begin(), plan.servers.end(), 0U);
    if (is_known && spec_.schedule == JobSchedule::kByResource) {
        std::stable_sort(plan.servers.begin(), plan.servers.end(), [&](unsigned a, unsigned b) {
            return plan.ranks[a].speed > plan.ranks[b].speed;
        });
    }
    plan.servers.resize(std::min<std::size_t>(spec_.servers, plan.ranks.size()));
    std::sort(plan.servers.begin(), plan.servers.end());
    return plan;
}

}  // namespace

std::optional<JobMisfit> fit_job(const JobSpec& spec, const std::vector<JobNode>& nodes,
                                 JobPlan& plan) {
    FABRIC_CHECK(spec.ranks() >= 1);
    Placement placement(spec, nodes);
    if (auto misfit = placement.place_all()) return misfit;
    plan = placement.plan();
    return {};
}

std::optional<std::string> plan_job(const JobSpec& spec, const std::vector<JobNode>& nodes,
                                    JobPlan& plan) {
    if (const auto misfit = fit_job(spec, nodes, plan)) return misfit->text;
    return {};
}

JobPlan plan_without(const JobSpec& spec, const std::vector<JobNode>& nodes, const JobPlan& plan,
                     unsigned left_out) {
    Placement placement(spec, nodes);
    placement.take(plan, left_out);
    return placement.plan();
}

std::vector<unsigned> cut_batch(const std::vector<double>& shares, unsigned batch) {
    std::vector<unsigned> cut;
    std::vector<double> left;
    unsigned given = 0;
    for (const double share : shares) {
        const double exact = share * batch;
        cut.push_back(static_cast<unsigned>(exact));
        left.push_back(exact - std::floor(exact));
        given += cut.back();
    }
    std::vector<std::size_t> order(shares.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return left[a] > left[b]; });
    for (std::size_t next = 0; given < batch && !order.empty(); ++next, ++given) {
        ++cut[order[next % order.size()]];
    }
    return cut;
}

}  // namespace fabricd
