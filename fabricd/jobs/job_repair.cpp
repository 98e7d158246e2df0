#include "fabricd/jobs/job_repair.hpp"

#include <algorithm>
#include <set>

namespace fabricd {

namespace {

constexpr const char* kRemoved = "removed";

bool is_serious_fault(const std::string& faults) {
    for (std::size_t from = 0; from < faults.size();) {
        const std::size_t end = std::min(faults.find(',', from), faults.size());
        if (end > from && faults.compare(from, end - from, "thermal") != 0) return true;
        from = end + 1;
    }
    return false;
}

const JobDevice& device_of(const std::vector<JobNode>& nodes, const PlacedRank& rank) {
    return nodes[rank.node].devices[rank.device];
}

unsigned needed_ranks(const JobSpec& spec) {
    return spec.min_ranks == 0 ? spec.ranks() : spec.min_ranks;
}

/// What one rank has of the pool stays what it was.
void set_ranks(JobGroup& group, unsigned ranks) {
    const Bytes each = (group.pool + group.ranks - 1) / group.ranks;
    group.ranks = ranks;
    group.pool = each * ranks;
}

/// "device gpu0 is faulty: ecc, device gpu1 is removed"
std::string faults_text(const std::vector<JobNode>& nodes, const JobPlan& plan) {
    std::set<std::string> texts;
    for (const PlacedRank& rank : plan.ranks) {
        const JobDevice& device = device_of(nodes, rank);
        if (!device.fault.empty()) texts.insert("device " + device.name + " is " + device.fault);
    }
    std::string all;
    for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + text;
    return all;
}

/// "rank 1 is on gpu1 now": for as many ranks as before.
std::string moves_text(const std::vector<JobNode>& nodes, const JobPlan& before,
                       const JobPlan& after) {
    std::string all;
    for (std::size_t rank = 0; rank < after.ranks.size(); ++rank) {
        const JobDevice& from = device_of(nodes, before.ranks[rank]);
        const JobDevice& to = device_of(nodes, after.ranks[rank]);
        if (from.name == to.name) continue;
        all += (all.empty() ? "rank " : ", rank ") + std::to_string(rank) + " moves from " +
               from.name + " to " + to.name;
    }
    return all;
}

std::string next_text(const std::vector<JobNode>& nodes, const JobPlan& before,
                      const JobPlan& after, const std::string& faults) {
    std::string text = faults;
    const auto add = [&](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
    if (before.ranks.size() != after.ranks.size()) {
        add("the job goes on with " + std::to_string(after.ranks.size()) + " of " +
            std::to_string(before.ranks.size()) + " ranks");
    } else {
        add(moves_text(nodes, before, after));
    }
    return text;
}

}  // namespace

std::string change_text(const JobNode& node, const DeviceChange& change) {
    std::string text = "device " + node.devices[change.device].name +
                       (change.ranks.size() == 1 ? " of rank " : " of ranks ");
    for (const unsigned rank : change.ranks) {
        text += (rank == change.ranks.front() ? "" : ", ") + std::to_string(rank);
    }
    return text + (change.state.empty() ? " works again" : " is " + change.state);
}

std::vector<DeviceChange> DeviceHealth::update(JobNode& node, std::size_t number,
                                               const JobPlan& plan,
                                               const std::vector<DeviceState>& look) {
    std::vector<DeviceChange> changes;
    shown_.resize(node.devices.size());
    for (std::size_t at = 0; at < node.devices.size(); ++at) {
        JobDevice& device = node.devices[at];
        const auto found = std::find_if(look.begin(), look.end(),
                                        [&](const auto& one) { return one.name == device.name; });
        std::string state = kRemoved;
        if (found != look.end()) state = found->faults.empty() ? "" : "faulty: " + found->faults;
        const bool is_serious = found == look.end() || is_serious_fault(found->faults);
        device.fault = is_serious ? state : "";
        DeviceChange change{at, {}, state, is_serious};
        for (unsigned rank = 0; rank < plan.ranks.size(); ++rank) {
            const PlacedRank& one = plan.ranks[rank];
            if (one.node == number && one.device == at) change.ranks.push_back(rank);
        }
        if (change.ranks.empty()) {
            shown_[at].clear();
        } else if (shown_[at] != state) {
            shown_[at] = state;
            changes.push_back(std::move(change));
        }
    }
    return changes;
}

JobRepair repair_of(const JobSpec& spec, const std::vector<JobNode>& nodes, const JobPlan& plan,
                    unsigned rank, unsigned restarts) {
    if (restarts < spec.max_restarts) {
        const bool is_sound = device_of(nodes, plan.ranks[rank]).fault.empty();
        return spec.restart == JobRestart::kRank && is_sound ? JobRepair::kRestartRank
                                                             : JobRepair::kRestartAll;
    }
    return spec.ranks() > needed_ranks(spec) ? JobRepair::kShrink : JobRepair::kEnd;
}

AttemptPlan plan_attempt(const JobSpec& spec, const std::vector<JobNode>& nodes,
                         const JobPlan& plan, std::optional<unsigned> left_out) {
    NextAttempt next{spec, plan, ""};
    if (left_out) {
        JobGroup& group = next.spec.groups[plan.ranks[*left_out].group];
        set_ranks(group, group.ranks - 1);
        next.plan = plan_without(next.spec, nodes, plan, *left_out);
    }
    // Of the ranks that are left: what the one that does not come back was on is of no interest.
    const std::string faults = faults_text(nodes, next.plan);
    const unsigned needed = needed_ranks(spec);
    while (!faults.empty()) {
        const auto misfit = fit_job(next.spec, nodes, next.plan);
        if (!misfit) break;
        set_ranks(next.spec.groups[misfit->group], misfit->placed);
        if (next.spec.ranks() >= std::max(needed, 1U)) continue;
        std::string few;
        if (spec.min_ranks != 0) few = " (min_ranks is " + std::to_string(needed) + ")";
        return {{}, faults + "; " + misfit->text + few};
    }
    if (left_out || !faults.empty()) next.change = next_text(nodes, plan, next.plan, faults);
    return {std::move(next), ""};
}

}  // namespace fabricd
