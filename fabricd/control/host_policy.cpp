#include "fabricd/control/host_policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "fabricd/control/apportion.hpp"
#include "fabricd/control/numbers.hpp"
#include "fabricd/control/s113_data_flow.hpp"
#include "fabricd/control/s212_priority.hpp"
#include "fabricd/control/s213_placement.hpp"
#include "fabricd/control/s322_vgpu.hpp"
#include "fabricd/control/s422_allocation.hpp"

namespace fabricd {

namespace {

constexpr std::uint64_t kWholeDevice = 100;  // per cent
constexpr double kLeastShareChange = 5;      // of them: less is noise of the usage
// S422's least part where nothing is asked for: so little is still a whole per cent, rounded up,
// and 0 % would be no share at all.
constexpr double kLeastPart = 1e-9;

Decision decision_on(const std::string& device, ActionKind kind) {
    Decision decision;
    decision.kind = kind;
    decision.device = device;
    return decision;
}

// The three lists of a decision belong together, entry by entry. It is carried out in their order:
// what shrinks first, so that there is room for what grows.
void add_change(Decision& decision, const std::string& name, double before, double after) {
    const auto at = after < before ? 0 : static_cast<std::ptrdiff_t>(decision.names.size());
    decision.names.insert(decision.names.begin() + at, name);
    decision.before.insert(decision.before.begin() + at, before);
    decision.after.insert(decision.after.begin() + at, after);
}

/// Whether a quota may stay as it is though the stage wants it a little different.
bool is_small_change(double now, double next, const ControlConfig& config) {
    // Nobody can use a quota below a page of the device, and 0 is no quota at all.
    const bool is_too_little = next < VgpuWeights{}.unit && next < now;
    return is_too_little || std::abs(next - now) <= config.gain * now;
}

/// What the quotas are together when small changes are left out.
double sum_without_small(const QuotaDevice& device, const std::vector<double>& wanted,
                         const ControlConfig& config) {
    double sum = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        const double now = device.users[i].quota;
        sum += is_small_change(now, std::floor(wanted[i]), config) ? now : std::floor(wanted[i]);
    }
    return sum;
}

// Whole per cents on the way from `before` to `wanted` that change at most `most` of the device.
std::vector<double> step_towards(const std::vector<double>& before,
                                 const std::vector<std::uint64_t>& wanted, double most) {
    std::vector<double> after(wanted.begin(), wanted.end());
    const double moved = moved_part(before, after) / kWholeDevice;
    if (moved <= most) return after;
    std::vector<double> mixed;
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < after.size(); ++i) {
        mixed.push_back(before[i] + most / moved * (after[i] - before[i]));
        all += static_cast<std::uint64_t>(before[i]);
    }
    const auto whole = whole_units(all, mixed);
    return {whole.begin(), whole.end()};
}

double used_by(const std::string& name, std::span<const QuotaWindow> users, double otherwise) {
    for (const QuotaWindow& user : users) {
        if (user.name == name && usable(user.used)) return user.used;
    }
    return otherwise;
}

// Leaves to who has to give what it uses, and takes that from what the others get.
void spare_what_is_used(Decision& back, std::span<const QuotaWindow> users) {
    double missing = 0;
    double wanted = 0;
    for (std::size_t i = 0; i < back.names.size(); ++i) {
        const double now = back.before[i];
        double& next = back.after[i];
        wanted += std::max(next - now, 0.0);
        const double least = std::min(std::ceil(used_by(back.names[i], users, now)), now);
        if (next >= now || next >= least) continue;
        missing += least - next;
        next = least;
    }
    const double part = wanted > 0 ? std::max(wanted - missing, 0.0) / wanted : 0;
    for (std::size_t i = 0; i < back.names.size(); ++i) {
        const double step = back.after[i] - back.before[i];
        if (step > 0) back.after[i] = back.before[i] + std::floor(part * step);
    }
}

void leave_out_what_stays(Decision& decision) {
    for (std::size_t i = decision.names.size(); i-- > 0;) {
        if (decision.after[i] != decision.before[i]) continue;
        const auto at = static_cast<std::ptrdiff_t>(i);
        decision.names.erase(decision.names.begin() + at);
        decision.before.erase(decision.before.begin() + at);
        decision.after.erase(decision.after.begin() + at);
    }
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
    // others: but where the device is full each of them is somebody's room.
    const double room = std::max(device.memory - reserve, 0.0);
    const bool takes_all = sum_without_small(device, *wanted, config) > room;
    Decision decision = decision_on(device.name, ActionKind::kQuota);
    for (std::size_t i = 0; i < readings.size(); ++i) {
        const double now = readings[i].quota;
        const double next = std::floor((*wanted)[i]);
        const bool stays = next == now || next < 1;
        if (stays || (!takes_all && is_small_change(now, next, config))) continue;
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
    std::vector<double> before;
    std::vector<std::string> names;
    std::uint64_t enforced = 0;
    for (const QuotaWindow& user : device.users) {
        if (user.percent == 0) continue;
        tasks.push_back({user.usage, user.priority, user.delay});
        before.push_back(static_cast<double>(user.percent));
        names.push_back(user.name);
        enforced += user.percent;
    }
    // What the administrator left free stays free; shares that add up to more than the device are
    // a promise that only somebody idle keeps, and not for the loop to mend.
    if (tasks.size() < 2 || enforced > kWholeDevice) return std::nullopt;
    // Nobody used anything: then every share is as good as another.
    const bool is_idle = std::all_of(tasks.begin(), tasks.end(),
                                     [](const TaskDemand& task) { return task.usage <= 0; });
    const auto parts = allocate_tasks(tasks, enforced, std::max(config.share_least, kLeastPart));
    if (is_idle || !parts) return std::nullopt;
    const std::vector<double> after = step_towards(before, *parts, config.quota_step);
    Decision decision = decision_on(device.name, ActionKind::kComputeShare);
    bool is_off = false;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        is_off = is_off || std::abs(after[i] - before[i]) >= kLeastShareChange;
        if (after[i] != before[i]) add_change(decision, names[i], before[i], after[i]);
        decision.facts.push_back({"S421", names[i] + " usage", 100 * tasks[i].usage, "%"});
        decision.facts.push_back(
            {"S422", names[i] + " share", static_cast<double>((*parts)[i]), "%"});
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
        items.push_back({items.size(), shard.until_needed_s, shard.bytes});
    }
    const PriorityWeights weights{config.urgency_weight, config.size_weight,
                                  std::chrono::duration<double>(config.urgency_time).count(),
                                  config.large_first};
    // S212 says who is asked first; memory and the number of moves at once run out in that order.
    PlacementInput input;
    for (const std::size_t i : priority_list(items, weights)) {
        const ShardWindow& shard = window.shards[i];
        input.items.push_back({i, shard.bytes, shard.home, shard.reads});
    }
    for (const NodeWindow& node : window.nodes) {
        input.nodes.push_back({node.speed, node.free_bytes});
    }
    input.bandwidth = window.bandwidth;
    PlacementLimits limits;
    limits.margin = limits.least = config.gain;
    limits.horizon_s =
        static_cast<double>(config.horizon) * std::chrono::duration<double>(config.window).count();
    const auto moves = place_items(input, limits);
    if (!moves || moves->empty()) return std::nullopt;

    Decision decision = decision_on("", ActionKind::kPlacement);
    for (const Migration& move : *moves) {
        const std::string& name = window.shards[move.item].name;
        // Not add_change(): nodes have no size, and what S213 placed first moves first.
        decision.names.push_back(name);
        decision.before.push_back(static_cast<double>(move.from));
        decision.after.push_back(static_cast<double>(move.to));
        decision.facts.push_back(
            {"S212", name + " needed in", window.shards[move.item].until_needed_s, "s"});
        decision.facts.push_back(
            {"S211", name + " bandwidth", move.bytes / std::max(move.cost_s, 1e-9), "bytes/s"});
        const std::string way = window.nodes[move.from].name + " to " + window.nodes[move.to].name;
        const std::string what = name + " ";
        decision.facts.push_back({"S213", what + "from " + way, move.bytes, "bytes"});
        decision.facts.push_back({"S213", what + "gain", move.gain_s, "s"});
        decision.facts.push_back({"S213", what + "cost", move.cost_s, "s"});
        decision.cost_s += move.cost_s;
    }
    decision.facts.push_back({"guard", "horizon", limits.horizon_s, "s"});
    decision.reason = moves->size() == 1
                          ? decision.names.front() + " moves to " +
                                window.nodes[moves->front().to].name + ", which reads it"
                          : std::to_string(moves->size()) + " shards move to where they are read";
    return decision;
}

std::optional<Decision> taking_back(const Decision& undone, std::span<const QuotaWindow> users) {
    Decision back = undone;
    back.undoes = undone.id;
    std::swap(back.before, back.after);
    const bool is_memory =
        undone.kind == ActionKind::kQuota || undone.kind == ActionKind::kPoolQuota;
    if (is_memory) spare_what_is_used(back, users);
    leave_out_what_stays(back);
    if (back.names.empty()) return std::nullopt;
    back.facts.clear();
    back.reason = "takes back decision " + std::to_string(undone.id);
    back.outcome = Outcome::kDone;
    back.measured = 0;
    return back;
}

}  // namespace fabricd
