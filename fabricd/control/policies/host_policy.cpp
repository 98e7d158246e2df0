#include "fabricd/control/policies/host_policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "fabricd/control/policies/quota_plan.hpp"
#include "fabricd/control/stages/allocation.hpp"
#include "fabricd/control/stages/apportion.hpp"
#include "fabricd/control/stages/data_flow.hpp"
#include "fabricd/control/stages/lending.hpp"
#include "fabricd/control/stages/numbers.hpp"
#include "fabricd/control/stages/placement.hpp"
#include "fabricd/control/stages/priority.hpp"
#include "fabricd/control/stages/vgpu.hpp"

namespace fabricd {

using fabricshm::Bytes;

namespace {

constexpr std::uint64_t kWholeDevice = 100;  // per cent
constexpr double kMinShareChange = 5;        // of them: less is noise of the usage
// S422's least part where nothing is asked for: so little is still a whole per cent, rounded up,
// and 0 % would be no share at all.
constexpr double kMinPart = 1e-9;

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

// Leaves to those that have to give what they use, and takes that from what the others get.
void spare_what_is_used(std::vector<NamedChange<Bytes>>& back, std::span<const QuotaWindow> users) {
    double missing = 0;
    double wanted = 0;
    for (auto& change : back) {
        const auto now = static_cast<double>(change.before);
        const auto next = static_cast<double>(change.after);
        wanted += std::max(next - now, 0.0);
        const double least = std::min(std::ceil(used_by(change.name, users, now)), now);
        if (next >= now || next >= least) continue;
        missing += least - next;
        change.after = whole_of<Bytes>(least);
    }
    const double part = wanted > 0 ? std::max(wanted - missing, 0.0) / wanted : 0;
    for (auto& change : back) {
        if (change.after <= change.before) continue;
        const auto step = static_cast<double>(change.after - change.before);
        change.after = change.before + whole_of<Bytes>(part * step);
    }
}

// Memory that is in use stays where it is; all else can be reclaimed at any moment.
template <typename A>
void spare(A& action, std::span<const QuotaWindow> users) {
    constexpr bool kIsMemory =
        std::is_same_v<A, Quota> || std::is_same_v<A, PoolQuota> || std::is_same_v<A, CacheQuota>;
    if constexpr (kIsMemory) spare_what_is_used(action.changes, users);
}

double own_percent(const QuotaWindow& user) {
    return user.promised_percent > 0 ? user.promised_percent : static_cast<double>(user.percent);
}

VgpuWeights weights_of(const ControlConfig& config) {
    VgpuWeights weights;
    weights.filled = config.quota_filled;
    weights.speed = config.quota_speed_power;
    weights.delay = config.quota_delay;
    weights.busy = config.quota_busy;
    weights.step = config.quota_step;
    return weights;
}

double room_of(const QuotaDevice& device, const ControlConfig& config) {
    const double reserve = std::max(device.reserve, static_cast<double>(config.quota_reserve));
    return std::max(device.memory - reserve, 0.0);
}

// Nothing when a number is unusable.
std::optional<std::vector<Holder>> holders_of(const QuotaDevice& device,
                                              const ControlConfig& config) {
    std::vector<VgpuReading> needs, readings;
    for (const QuotaWindow& user : device.users) {
        needs.push_back({user.quota, user.used, user.denied, 1, 0, 0});
        readings.push_back({user.quota, user.used, user.denied, user.speed, user.delay, user.busy});
    }
    // What one needs to run does not get less where it is slow or others are busy: that only says
    // how much each gets where there is not enough for all that ask.
    const auto demands = vgpu_demands(needs, weights_of(config));
    const auto worths = vgpu_demands(readings, weights_of(config));
    if (!demands || !worths) return std::nullopt;
    if (!usable(device.memory) || !usable(device.reserve)) return std::nullopt;
    std::vector<Holder> holders;
    for (std::size_t i = 0; i < readings.size(); ++i) {
        if (!usable(device.users[i].priority)) return std::nullopt;
        Holder holder = holder_of(device.users[i], config);
        // What S322 makes of the demand; below its promise a tenant asks for that, whatever the
        // stage thinks of it.
        const double more = (*demands)[i] - holder.held;
        if (holder.held >= holder.promised) holder.asks = asks_of(device.users[i], more, config);
        holder.weight = (*worths)[i] * device.users[i].priority;
        holders.push_back(holder);
    }
    return holders;
}

Decision quota_decision(const QuotaDevice& device, const std::vector<Holder>& holders,
                        const std::vector<double>& after) {
    Decision decision;
    decision.device = device.name;
    Quota action;
    for (std::size_t i = 0; i < holders.size(); ++i) {
        const QuotaWindow& user = device.users[i];
        if (after[i] == user.quota) continue;
        add_change(action.changes, user.name, user.quota, after[i]);
        const std::string who = user.name + " ";
        decision.facts.push_back({"S321", who + "used", user.used, "bytes"});
        decision.facts.push_back({"S321", who + "denied", user.denied, "bytes"});
        decision.facts.push_back({"S321", who + "promised", holders[i].promised, "bytes"});
        decision.facts.push_back({"S322", who + "speed", user.speed, "of the mean"});
        decision.facts.push_back({"S322", who + "delay", user.delay, "windows"});
        decision.facts.push_back({"S322", who + "load of others", user.busy, ""});
        decision.facts.push_back({"S323", who + "quota", after[i], "bytes"});
    }
    decision.action = std::move(action);
    return decision;
}

}  // namespace

std::optional<Decision> propose_quotas(const QuotaDevice& device, const ControlConfig& config) {
    const auto holders = holders_of(device, config);
    if (!holders) return std::nullopt;
    const double room = room_of(device, config);
    double quotas = 0;
    double denied = 0;
    for (const QuotaWindow& user : device.users) {
        quotas += user.quota;
        denied += user.denied;
    }
    const bool fits = quotas <= room;
    Decision decision =
        quota_decision(device, *holders, fits ? lend(*holders, room) : fit(*holders, room));
    if (action_as<Quota>(decision)->changes.empty()) return std::nullopt;
    decision.facts.push_back({"S322", "device less reserve", room, "bytes"});
    char line[160];
    std::snprintf(line, sizeof line, "%.0f MiB were refused on %s", denied / (1024 * 1024),
                  device.name.c_str());
    decision.reason = fits ? line : "the quotas are larger than " + device.name;
    return decision;
}

std::optional<Decision> propose_quota_returns(const QuotaDevice& device,
                                              const ControlConfig& config) {
    const auto holders = holders_of(device, config);
    if (!holders) return std::nullopt;
    const auto after = give_back(*holders, room_of(device, config));
    if (!is_worth_returning(*holders, after, config.gain)) return std::nullopt;
    return as_return(quota_decision(device, *holders, after));
}

namespace {

/// Held up for less than this part of a window is the throttle's own coarseness.
constexpr double kHeldUp = 0.05;

/// Those users whose use of the GPU's time is known, and what S422 says about them.
struct ShareCase {
    std::vector<const QuotaWindow*> users;
    std::vector<TaskDemand> tasks;
    std::vector<double> before;
    std::uint64_t total = 0;
};

bool is_held_up(const QuotaWindow& user) {
    return user.held_up > kHeldUp;
}

// What it would use if nothing held it up, as far as that is known; its share caps what is
// measured.
double demand_of(const QuotaWindow& user) {
    return user.usage / std::max(1 - user.held_up, kHeldUp);
}

std::optional<ShareCase> share_case(const QuotaDevice& device, const ControlConfig& config) {
    ShareCase known;
    double promised = 0;
    for (const QuotaWindow& user : device.users) {
        if (user.percent == 0) continue;
        const double inputs[] = {user.usage, user.held_up, user.promised_percent};
        if (!usable(inputs)) return std::nullopt;
        known.users.push_back(&user);
        known.before.push_back(static_cast<double>(user.percent));
        known.total += user.percent;
        promised += own_percent(user);
    }
    // What the administrator left free stays free; shares that add up to more than the device are
    // a promise that only an idle tenant keeps, and not for the loop to mend.
    if (known.users.size() < 2 || known.total > kWholeDevice) return std::nullopt;
    const double part =
        promised > 0 ? std::min(static_cast<double>(known.total) / promised, 1.0) : 0;
    for (const QuotaWindow* user : known.users) {
        const double needs = is_held_up(*user) ? static_cast<double>(known.total)
                                               : 100 * user->usage / config.quota_filled;
        known.tasks.push_back(
            {demand_of(*user), user->priority, 0, part * own_percent(*user), needs});
    }
    return known;
}

Decision share_decision(const QuotaDevice& device, const ShareCase& known,
                        const std::vector<double>& after) {
    Decision decision;
    decision.device = device.name;
    ComputeShare action;
    for (std::size_t i = 0; i < after.size(); ++i) {
        const QuotaWindow& user = *known.users[i];
        if (after[i] != known.before[i]) {
            add_change(action.changes, user.name, known.before[i], after[i]);
        }
        decision.facts.push_back({"S421", user.name + " usage", 100 * user.usage, "%"});
        decision.facts.push_back({"S421", user.name + " held up", 100 * user.held_up, "%"});
        decision.facts.push_back({"S422", user.name + " promised", own_percent(user), "%"});
        decision.facts.push_back({"S423", user.name + " share", after[i], "%"});
    }
    decision.facts.push_back({"S422", "dependency delay (nothing measures it)", 0, "steps"});
    decision.action = std::move(action);
    return decision;
}

}  // namespace

std::optional<Decision> propose_compute_shares(const QuotaDevice& device,
                                               const ControlConfig& config) {
    const auto known = share_case(device, config);
    if (!known) return std::nullopt;
    const auto parts =
        allocate_tasks(known->tasks, known->total, std::max(config.share_min, kMinPart));
    if (!parts) return std::nullopt;
    const std::vector<double> after = step_towards(known->before, *parts, config.quota_step);
    // A share that is not missed is left alone: it is lent when another tenant is held up.
    bool helps = false;
    for (std::size_t i = 0; i < after.size(); ++i) {
        const double more = after[i] - known->before[i];
        helps = helps || (is_held_up(*known->users[i]) && more >= kMinShareChange);
    }
    if (!helps) return std::nullopt;
    Decision decision = share_decision(device, *known, after);
    decision.reason =
        "time of " + device.name + " that others don't use goes to tenants that are held up";
    return decision;
}

std::optional<Decision> propose_share_returns(const QuotaDevice& device,
                                              const ControlConfig& config) {
    const auto known = share_case(device, config);
    if (!known) return std::nullopt;
    bool any = false;
    for (std::size_t i = 0; i < known->users.size(); ++i) {
        const bool is_short = known->before[i] + 1 <= known->tasks[i].promised;
        any = any || (is_short && is_held_up(*known->users[i]));
    }
    const auto parts =
        allocate_tasks(known->tasks, known->total, std::max(config.share_min, kMinPart));
    if (!any || !parts) return std::nullopt;
    // At once, however much it is: time that is lent can be reclaimed at any moment.
    return as_return(share_decision(device, *known, {parts->begin(), parts->end()}));
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
    // S212 says which shard is asked first; memory and the number of moves at once run out in that
    // order.
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

    Decision decision;
    Placement action;
    for (const Migration& move : *moves) {
        const std::string& name = window.shards[move.item].name;
        // Not add_change(): nodes have no size, and what S213 placed first moves first.
        action.changes.push_back(
            {name, static_cast<std::uint32_t>(move.from), static_cast<std::uint32_t>(move.to)});
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
                          ? action.changes.front().name + " moves to " +
                                window.nodes[moves->front().to].name + ", which reads it"
                          : std::to_string(moves->size()) + " shards move to where they are read";
    decision.action = std::move(action);
    return decision;
}

std::optional<Decision> taking_back(const Decision& undone, std::span<const QuotaWindow> users) {
    Decision back = undone;
    back.undoes = undone.id;
    back.action = reversed(undone.action);
    std::visit([&](auto& action) { spare(action, users); }, back.action);
    drop_unchanged(back.action);
    if (frame_of(back.action).names.empty()) return std::nullopt;
    back.facts.clear();
    back.reason = "reverses decision " + std::to_string(undone.id);
    back.outcome = Outcome::kDone;
    back.measured = 0;
    return back;
}

}  // namespace fabricd
