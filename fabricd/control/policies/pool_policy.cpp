#include "fabricd/control/policies/pool_policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "fabricd/control/policies/quota_plan.hpp"
#include "fabricd/control/stages/allocation_ratio.hpp"
#include "fabricd/control/stages/lending.hpp"
#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

namespace {

constexpr double kBytesPerMiB = 1024 * 1024;

bool is_sound(const PoolWindow& pool) {
    if (pool.devices.size() < 2 || pool.most.size() != pool.devices.size()) return false;
    if (!usable(pool.most)) return false;
    for (const QuotaWindow& device : pool.devices) {
        const double inputs[] = {device.quota, device.used,     device.denied,
                                 device.speed, device.priority, device.promised};
        if (!usable(inputs)) return false;
    }
    return true;
}

std::vector<Holder> holders_of(const PoolWindow& pool, const ControlConfig& config) {
    std::vector<Holder> holders;
    for (std::size_t i = 0; i < pool.devices.size(); ++i) {
        Holder holder = holder_of(pool.devices[i], config);
        holder.most = pool.most[i];
        holder.promised = std::min(holder.promised, holder.most);
        holder.asks = std::min(holder.asks, std::max(holder.most - holder.held, 0.0));
        holders.push_back(holder);
    }
    return holders;
}

double quotas_of(const std::vector<Holder>& holders) {
    double sum = 0;
    for (const Holder& holder : holders) sum += holder.held;
    return sum;
}

// S412: in which ratio those that ask share what is free. What each asks for is the memory
// that it can take.
bool set_ratio(std::vector<Holder>& holders, const PoolWindow& pool) {
    std::vector<AllocationNode> nodes;
    double free_bytes = 0;
    for (std::size_t i = 0; i < holders.size(); ++i) {
        const QuotaWindow& device = pool.devices[i];
        free_bytes += std::max(holders[i].held - holders[i].in_use, 0.0);
        nodes.push_back(
            {device.used + device.denied, device.priority, device.speed, holders[i].asks});
    }
    // Where all is held there is nothing to divide.
    if (free_bytes <= 0) return false;
    const auto ratio = allocation_ratio(nodes, free_bytes);
    if (!ratio) return false;
    for (std::size_t i = 0; i < holders.size(); ++i) holders[i].weight = (*ratio)[i];
    return true;
}

Decision pool_decision(const PoolWindow& pool, const std::vector<Holder>& holders,
                       const std::vector<double>& after) {
    Decision decision;
    decision.device = "pool";
    PoolQuota action;
    for (std::size_t i = 0; i < after.size(); ++i) {
        const QuotaWindow& device = pool.devices[i];
        const std::string who = device.name + " ";
        decision.facts.push_back({"S411", who + "quota", device.quota, "bytes"});
        decision.facts.push_back({"S411", who + "used", device.used, "bytes"});
        decision.facts.push_back({"S411", who + "denied", device.denied, "bytes"});
        decision.facts.push_back({"S411", who + "promised", holders[i].promised, "bytes"});
        decision.facts.push_back({"S412", who + "ratio", holders[i].weight, ""});
        decision.facts.push_back({"S413", who + "quota", after[i], "bytes"});
        // What gives comes before what takes: the pool is never promised twice.
        if (after[i] != device.quota) {
            add_change(action.changes, device.name, device.quota, after[i]);
        }
    }
    decision.action = std::move(action);
    return decision;
}

}  // namespace

std::optional<Decision> propose_pool_quotas(const PoolWindow& pool, const ControlConfig& config) {
    if (!is_sound(pool)) return std::nullopt;
    std::vector<Holder> holders = holders_of(pool, config);
    if (!set_ratio(holders, pool)) return std::nullopt;
    Decision decision = pool_decision(pool, holders, lend(holders, quotas_of(holders)));
    if (action_as<PoolQuota>(decision)->changes.empty()) return std::nullopt;
    double denied = 0;
    for (const QuotaWindow& device : pool.devices) denied += device.denied;
    char line[96];
    std::snprintf(line, sizeof line, "%.1f MiB of the pool were refused", denied / kBytesPerMiB);
    decision.reason = line;
    return decision;
}

std::optional<Decision> propose_pool_returns(const PoolWindow& pool, const ControlConfig& config) {
    if (!is_sound(pool)) return std::nullopt;
    std::vector<Holder> holders = holders_of(pool, config);
    for (Holder& holder : holders) holder.weight = 0;
    const auto after = give_back(holders, quotas_of(holders));
    if (!is_worth_returning(holders, after, config.gain)) return std::nullopt;
    return as_return(pool_decision(pool, holders, after));
}

}  // namespace fabricd
