#include "fabricd/control/pool_policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "fabricd/control/numbers.hpp"
#include "fabricd/control/s412_allocation_ratio.hpp"

namespace fabricd {

namespace {

constexpr double kMiB = 1024 * 1024;

// Below a quarter of so little no quota would ever move.
constexpr double kLeastStep = kMiB;

bool is_sound(const PoolWindow& pool) {
    if (pool.devices.size() < 2 || pool.most.size() != pool.devices.size()) return false;
    if (!usable(pool.most)) return false;
    for (const QuotaWindow& device : pool.devices) {
        const double inputs[] = {device.quota, device.used, device.denied, device.speed,
                                 device.priority};
        if (!usable(inputs)) return false;
    }
    return true;
}

/// What each quota would change by if S412 divided all that nobody holds.
std::vector<double> wanted_changes(const PoolWindow& pool, const std::vector<double>& ratio,
                                   double free_bytes) {
    std::vector<double> changes;
    for (std::size_t i = 0; i < ratio.size(); ++i) {
        const QuotaWindow& device = pool.devices[i];
        const double change = device.used + ratio[i] * free_bytes - device.quota;
        // Who was just refused memory does not get less, however slow its device is.
        changes.push_back(device.denied > 0 ? std::max(change, 0.0) : change);
    }
    return changes;
}

/// Makes what is given equal to what is taken, and no change larger than its step.
void balance(std::vector<double>& changes, const PoolWindow& pool, double step) {
    double given = 0;
    double taken = 0;
    for (const double change : changes) (change > 0 ? given : taken) += std::abs(change);
    const double both = std::min(given, taken);
    double part = 1;
    for (std::size_t i = 0; i < changes.size(); ++i) {
        double& change = changes[i];
        const double side = change > 0 ? given : taken;
        change = side > 0 ? change * (both / side) : 0;
        const double most = std::max(step * pool.devices[i].quota, kLeastStep);
        if (std::abs(change) > most) part = std::min(part, most / std::abs(change));
    }
    // One part for all, so that the sum stays.
    for (double& change : changes) change *= part;
}

void explain(Decision& decision, const QuotaWindow& device, double ratio, double next) {
    const std::string who = device.name + " ";
    decision.facts.push_back({"S411", who + "quota", device.quota, "bytes"});
    decision.facts.push_back({"S411", who + "used", device.used, "bytes"});
    decision.facts.push_back({"S411", who + "denied", device.denied, "bytes"});
    decision.facts.push_back({"S412", who + "ratio", ratio, ""});
    decision.facts.push_back({"S413", who + "quota", next, "bytes"});
}

}  // namespace

std::optional<Decision> propose_pool_quotas(const PoolWindow& pool, const ControlConfig& config) {
    if (!is_sound(pool)) return std::nullopt;
    std::vector<AllocationNode> nodes;
    double denied = 0;
    double free_bytes = 0;
    for (std::size_t i = 0; i < pool.devices.size(); ++i) {
        const QuotaWindow& device = pool.devices[i];
        denied += device.denied;
        free_bytes += device.quota - device.used;
        nodes.push_back({device.used + device.denied, device.priority, device.speed,
                         std::max(pool.most[i] - device.used, 0.0)});
    }
    // A quota that nobody misses is left alone, and where all is held there is nothing to divide.
    if (denied <= 0 || free_bytes <= 0) return std::nullopt;
    const auto ratio = allocation_ratio(nodes, free_bytes);
    if (!ratio) return std::nullopt;
    std::vector<double> changes = wanted_changes(pool, *ratio, free_bytes);
    balance(changes, pool, config.quota_step);

    Decision decision;
    decision.kind = ActionKind::kPoolQuota;
    decision.device = "pool";
    bool helps = false;
    for (std::size_t i = 0; i < changes.size(); ++i) {
        const QuotaWindow& device = pool.devices[i];
        const double next = std::floor(device.quota + changes[i]);
        helps = helps || (device.denied > 0 && changes[i] > config.gain * device.quota);
        explain(decision, device, (*ratio)[i], next);
        if (next == device.quota) continue;
        // What gives comes before what takes: the pool is never promised twice.
        const auto at = changes[i] < 0 ? 0 : static_cast<std::ptrdiff_t>(decision.names.size());
        decision.names.insert(decision.names.begin() + at, device.name);
        decision.before.insert(decision.before.begin() + at, device.quota);
        decision.after.insert(decision.after.begin() + at, next);
    }
    if (!helps) return std::nullopt;
    char line[96];
    std::snprintf(line, sizeof line, "%.1f MiB of the pool were refused", denied / kMiB);
    decision.reason = line;
    return decision;
}

}  // namespace fabricd
