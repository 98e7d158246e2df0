#include "fabricd/control/host_policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "fabricd/control/numbers.hpp"
#include "fabricd/control/s212_priority.hpp"
#include "fabricd/control/s213_placement.hpp"
#include "fabricd/control/s322_vgpu.hpp"
#include "fabricd/control/s422_allocation.hpp"

namespace fabricd {

namespace {

constexpr std::uint64_t kWholeDevice = 100;  // per cent
constexpr double kLeastShareChange = 5;      // of them: less is noise of the usage

Decision decision_on(const std::string& device, ActionKind kind) {
    Decision decision;
    decision.kind = kind;
    decision.device = device;
    return decision;
}

// The three lists of a decision belong together, entry by entry.
void add_change(Decision& decision, const std::string& name, double before, double after) {
    decision.names.push_back(name);
    decision.before.push_back(before);
    decision.after.push_back(after);
}

}  // namespace

std::optional<Decision> propose_quotas(const QuotaDevice& device, const ControlConfig& config) {
    std::vector<VgpuReading> readings;
    double denied = 0;
    double quotas = 0;
    for (const QuotaWindow& user : device.users) {
        readings.push_back({user.quota, user.used, user.denied, user.speed, user.delay, user.busy});
        denied += usable(user.denied) ? user.denied : 0;
        quotas += usable(user.quota) ? user.quota : 0;
    }
    const double reserve = std::max(device.reserve, static_cast<double>(config.quota_reserve));
    const bool fits = quotas <= std::max(device.memory - reserve, 0.0);
    // A quota that nobody misses is left alone: changing it could only do harm.
    if (denied <= 0 && fits) return std::nullopt;
    VgpuWeights weights;
    weights.filled = config.quota_filled;
    weights.speed = config.quota_speed_power;
    weights.delay = config.quota_delay;
    weights.busy = config.quota_busy;
    weights.step = config.quota_step;
    const auto wanted = vgpu_quotas(readings, {device.memory, reserve}, weights);
    if (!wanted) return std::nullopt;

    // Small changes are left out one by one, so that one tenant in need does not stir all the
    // others.
    Decision decision = decision_on(device.name, ActionKind::kQuota);
    for (std::size_t i = 0; i < readings.size(); ++i) {
        const double now = readings[i].quota;
        const double next = std::floor((*wanted)[i]);
        if (std::abs(next - now) <= config.gain * now) continue;
        add_change(decision, device.users[i].name, now, next);
        const std::string who = device.users[i].name + " ";
        decision.facts.push_back({"S321", who + "used", readings[i].used, "bytes"});
        decision.facts.push_back({"S321", who + "denied", readings[i].denied, "bytes"});
        decision.facts.push_back({"S322", who + "quota", next, "bytes"});
    }
    if (decision.names.empty()) return std::nullopt;
    decision.facts.push_back({"S322", "device less reserve", device.memory - reserve, "bytes"});
    char line[160];
    std::snprintf(line, sizeof line, "%.0f MiB were refused on %s", denied / (1024 * 1024),
                  device.name.c_str());
    decision.reason = fits ? line : "the quotas are larger than " + device.name;
    return decision;
}

std::optional<Decision> propose_compute_shares(const QuotaDevice& device,
                                               const ControlConfig& config) {
    std::vector<TaskDemand> tasks;
    std::uint64_t enforced = 0;
    for (const QuotaWindow& user : device.users) {
        tasks.push_back({user.usage, user.priority, user.delay});
        enforced += user.percent;
    }
    // Shares that nobody enforces are nobody's to change; nor is what the administrator left free.
    if (enforced == 0 || device.users.size() < 2) return std::nullopt;
    const auto parts = allocate_tasks(tasks, std::min(enforced, kWholeDevice), config.share_least);
    if (!parts) return std::nullopt;
    Decision decision = decision_on(device.name, ActionKind::kComputeShare);
    bool is_off = false;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        const auto now = static_cast<double>(device.users[i].percent);
        const auto next = static_cast<double>((*parts)[i]);
        is_off = is_off || std::abs(next - now) >= kLeastShareChange;
        add_change(decision, device.users[i].name, now, next);
        decision.facts.push_back(
            {"S422", device.users[i].name + " usage", 100 * tasks[i].usage, "%"});
    }
    if (!is_off) return std::nullopt;
    decision.reason = "compute shares of " + device.name + " by usage";
    return decision;
}

std::optional<Decision> propose_placement(const PlacementWindow& window,
                                          const ControlConfig& config) {
    if (window.shards.empty() || window.nodes.size() < 2) return std::nullopt;
    std::vector<PriorityItem> items;
    for (const ShardWindow& shard : window.shards) {
        items.push_back({shard.id, shard.until_needed_s, shard.bytes});
    }
    const PriorityWeights weights{config.urgency_weight, config.size_weight,
                                  std::chrono::duration<double>(config.urgency_time).count(),
                                  config.large_first};
    // S212 says who is asked first; memory and the number of moves at once run out in that order.
    PlacementInput input;
    for (const std::size_t i : priority_list(items, weights)) {
        const ShardWindow& shard = window.shards[i];
        input.items.push_back({shard.id, shard.bytes, shard.home, shard.reads});
    }
    for (const NodeWindow& node : window.nodes) {
        input.nodes.push_back({node.speed, node.load, node.free_bytes});
    }
    input.bandwidth = window.bandwidth;
    PlacementLimits limits;
    limits.margin = config.gain;
    limits.horizon_s =
        static_cast<double>(config.horizon) * std::chrono::duration<double>(config.window).count();
    const auto moves = place_items(input, limits);
    if (!moves || moves->empty()) return std::nullopt;

    Decision decision = decision_on("", ActionKind::kPlacement);
    for (const Migration& move : *moves) {
        add_change(decision, std::to_string(move.item), static_cast<double>(move.from),
                   static_cast<double>(move.to));
        const std::string what = "shard " + std::to_string(move.item) + " ";
        decision.facts.push_back({"S213", what + "size", move.bytes, "bytes"});
        decision.facts.push_back({"S213", what + "gain", move.gain_s, "s"});
        decision.facts.push_back({"S213", what + "cost", move.cost_s, "s"});
        decision.cost_s += move.cost_s;
    }
    decision.facts.push_back({"guard", "horizon", limits.horizon_s, "s"});
    decision.reason = std::to_string(moves->size()) + " shards move to where they are read";
    return decision;
}

}  // namespace fabricd
