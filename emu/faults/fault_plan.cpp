#include "emu/faults/fault_plan.hpp"

#include <algorithm>

namespace emu {

namespace {

constexpr const char* kActions[] = {"kill", "stop", "slow", "poison", "fill", "tear"};

// One entry of FABRIC_FAULT for one target (libfabricshm/base/fault_point.hpp).
// target@point:action:passage, and what the action needs besides. The library parses it without
// allocating, in every process of the job.
std::string entry_of(const Fault& fault, const std::string& who) {
    std::string entry =
        who + "@" + fault.point + ":" + text_of(fault.action) + ":" + std::to_string(fault.passage);
    const auto microseconds =
        std::chrono::duration_cast<std::chrono::microseconds>(fault.delay).count();
    if (fault.action == Action::kSlow) entry += ":" + std::to_string(microseconds);
    if (fault.action == Action::kPoison) entry += ":" + std::to_string(fault.offset);
    return entry;
}

void append(std::string& all, const std::string& entry) {
    all += (all.empty() ? "" : ";") + entry;
}

}  // namespace

const char* text_of(Action action) noexcept {
    return kActions[static_cast<std::size_t>(action)];
}

std::string text_of(const Target& target) {
    switch (target.kind) {
        case TargetKind::kRank:
            return "rank " + std::to_string(target.rank);
        case TargetKind::kDevice:
            return "device " + target.name;
        case TargetKind::kHost:
            return "host " + target.name;
        case TargetKind::kDaemon:
            break;
    }
    return "daemon";
}

// Names of hosts were checked when the plan was read, names of devices could not be: an unknown one
// means a device of the daemon's file.
std::vector<int> ranks_of(const FaultPlan& plan, const Target& target) {
    if (target.kind == TargetKind::kRank) return {target.rank};
    if (target.kind == TargetKind::kDaemon) return {};
    const auto& table = target.kind == TargetKind::kHost ? plan.hosts : plan.devices;
    const auto found = table.find(target.name);
    return found == table.end() ? std::vector<int>{} : found->second;
}

// One entry for each rank: a host fails as all of its ranks at once.
std::string armed_in_ranks(const FaultPlan& plan) {
    std::string all;
    for (const Fault& fault : plan.faults) {
        if (fault.point.empty() || fault.target.kind == TargetKind::kDaemon) continue;
        const std::vector<int> ranks = ranks_of(plan, fault.target);
        for (const int rank : ranks) append(all, entry_of(fault, "rank=" + std::to_string(rank)));
        // A device that the plan does not list is named as its processes were started; which ranks
        // these are is the launcher's business.
        const bool by_name = ranks.empty() && fault.target.kind == TargetKind::kDevice;
        if (by_name) append(all, entry_of(fault, "device=" + fault.target.name));
    }
    return all;
}

// In the daemon's own environment: it has no rank that could be asked for.
std::string armed_in_daemon(const FaultPlan& plan) {
    std::string all;
    for (const Fault& fault : plan.faults) {
        if (fault.point.empty() || fault.target.kind != TargetKind::kDaemon) continue;
        Fault at_point = fault;
        // The daemon only dies; the runner does the rest while it is dead.
        if (fault.action == Action::kTear) at_point.action = Action::kKill;
        append(all, entry_of(at_point, "daemon"));
    }
    return all;
}

}  // namespace emu
