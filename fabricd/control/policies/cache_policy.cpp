#include "fabricd/control/policies/cache_policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include "fabricd/control/policies/quota_plan.hpp"
#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

namespace {

constexpr double kMiB = 1024 * 1024;
/// Quotas of caches are whole steps of an arena: less can't be given back.
constexpr double kStep = 16 * kMiB;

double least_of(const CacheWindow& cache, const ControlConfig& config) {
    return std::min(std::max(cache.floor, config.cache_min * cache.size), cache.size);
}

double steps_up(double bytes) {
    return std::ceil(bytes / kStep) * kStep;
}

double steps_down(double bytes) {
    return std::floor(bytes / kStep) * kStep;
}

// The step of a decision: a part of the quota, and always something.
double step_of(const CacheWindow& cache, const ControlConfig& config) {
    return std::max(steps_down(config.quota_step * cache.quota), kStep);
}

// What it can give at once: whole steps, down to what it keeps.
double gift_of(const CacheWindow& cache, const ControlConfig& config) {
    const double spare = cache.quota - least_of(cache, config);
    return spare >= kStep ? std::min(step_of(cache, config), steps_down(spare)) : 0;
}

// By the readers' waiting, those that wait least first; of equal ones the larger.
std::vector<std::size_t> by_stall(const CacheRoomWindow& window) {
    std::vector<std::size_t> order(window.caches.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const double left = stall_share(window.caches[a], window.length_s);
        const double right = stall_share(window.caches[b], window.length_s);
        if (left != right) return left < right;
        return window.caches[a].quota > window.caches[b].quota;
    });
    return order;
}

// Windows in a row in which more memory would have helped, this one included. Without a byte that
// comes again readers wait for what the cache has never had: no memory changes that. But a fetch
// may last longer than a window, and its bytes count in the one in which it began: one without any
// says nothing while readers wait.
std::int64_t stalled_windows(std::int64_t before, const CacheWindow& cache, double length_s,
                             const ControlConfig& config) {
    const bool waits =
        stall_share(cache, length_s) > config.cache_stall && cache.quota < cache.size;
    if (!waits) return 0;
    return cache.refetched > 0 ? before + 1 : before;
}

Decision cache_decision(const CacheRoomWindow& window, const std::vector<double>& after,
                        const CacheMemory& memory) {
    Decision decision;
    decision.device = "caches";
    CacheQuota action;
    for (std::size_t i = 0; i < after.size(); ++i) {
        const CacheWindow& cache = window.caches[i];
        const std::string who = cache.name + " ";
        decision.facts.push_back({"cache", who + "has", cache.committed, "bytes"});
        decision.facts.push_back({"cache", who + "stall", 100 * stall_share(cache, window.length_s),
                                  "% of its readers"});
        decision.facts.push_back({"cache", who + "fetched again", cache.refetched, "bytes"});
        decision.facts.push_back({"cache", who + "would have had", cache.near, "bytes"});
        decision.facts.push_back({"cache", who + "quota", after[i], "bytes"});
        if (after[i] != cache.quota) {
            add_change(action.changes, cache.name, cache.quota, after[i]);
        }
    }
    decision.facts.push_back({"pool", "requests lacked", memory.demand, "bytes"});
    decision.facts.push_back({"pool", "used", window.used, "bytes"});
    decision.facts.push_back({"pool", "capacity", window.capacity, "bytes"});
    decision.action = std::move(action);
    return decision;
}

std::vector<double> quotas_of(const CacheRoomWindow& window) {
    std::vector<double> quotas;
    for (const CacheWindow& cache : window.caches) quotas.push_back(cache.quota);
    return quotas;
}

}  // namespace

double stall_share(const CacheWindow& cache, double length_s) noexcept {
    const double time = length_s * std::max(cache.readers, 1.0);
    return time > 0 ? std::min(cache.stall_s / time, 1.0) : 0;
}

bool is_sound(const CacheRoomWindow& window) {
    const double all[] = {window.length_s, window.capacity, window.used, window.lacked};
    if (!usable(all) || !(window.length_s > 0)) return false;
    return std::all_of(window.caches.begin(), window.caches.end(), [](const CacheWindow& cache) {
        const double inputs[] = {cache.size,    cache.quota,     cache.committed, cache.floor,
                                 cache.stall_s, cache.refetched, cache.near,      cache.readers};
        return usable(inputs) && cache.quota <= cache.size;
    });
}

void update(CacheMemory& memory, const CacheRoomWindow& window, const ControlConfig& config) {
    if (window.lacked > 0) {
        memory.demand = memory.calm == 0 ? std::max(memory.demand, window.lacked) : window.lacked;
        memory.calm = 0;
    } else {
        ++memory.calm;
    }
    std::map<std::string, CacheMemory::Cache> now;
    for (const CacheWindow& cache : window.caches) {
        CacheMemory::Cache one = memory.caches[cache.name];
        // Between the two neither count rises: a cache at the edge is left alone.
        const bool is_at_ease = stall_share(cache, window.length_s) < config.cache_stall / 2;
        one.stalled = stalled_windows(one.stalled, cache, window.length_s, config);
        one.at_ease = is_at_ease ? one.at_ease + 1 : 0;
        now[cache.name] = one;
    }
    memory.caches = std::move(now);
}

std::optional<Decision> propose_cache_gifts(const CacheRoomWindow& window,
                                            const CacheMemory& memory,
                                            const ControlConfig& config) {
    if (!is_sound(window) || memory.calm != 0 || !(memory.demand > 0)) return std::nullopt;
    // What is free beyond the caches' quotas is the jobs' already.
    double quotas = 0, committed = 0;
    for (const CacheWindow& cache : window.caches) {
        quotas += cache.quota;
        committed += cache.committed;
    }
    const double jobs = std::max(window.used - committed, 0.0);
    const double left = window.capacity - jobs - quotas;
    double lacking = std::max(steps_up(memory.demand - std::max(left, 0.0)), 0.0);
    std::vector<double> after = quotas_of(window);
    double given = 0;
    for (const std::size_t i : by_stall(window)) {
        const double gives = std::min(gift_of(window.caches[i], config), lacking);
        after[i] -= gives;
        lacking -= gives;
        given += gives;
    }
    if (given <= 0) return std::nullopt;
    Decision decision = cache_decision(window, after, memory);
    char line[160];
    std::snprintf(line, sizeof line, "%.0f MiB were lacking to jobs: caches keep %.0f MiB less",
                  memory.demand / kMiB, given / kMiB);
    decision.reason = line;
    decision.outcome = Outcome::kDone;
    return decision;
}

std::optional<Decision> propose_cache_quotas(const CacheRoomWindow& window,
                                             const CacheMemory& memory,
                                             const ControlConfig& config) {
    if (!is_sound(window) || memory.calm < config.cool_down) return std::nullopt;
    const auto of = [&](std::size_t i) {
        const auto found = memory.caches.find(window.caches[i].name);
        return found != memory.caches.end() ? found->second : CacheMemory::Cache{};
    };
    // The one whose readers wait most; of those that have for long enough.
    const auto order = by_stall(window);
    const auto taker = std::find_if(order.rbegin(), order.rend(), [&](std::size_t i) {
        return of(i).stalled >= config.imbalance_windows;
    });
    if (taker == order.rend()) return std::nullopt;
    const CacheWindow& taking = window.caches[*taker];
    std::vector<double> after = quotas_of(window);
    double wanted = std::min(step_of(taking, config), taking.size - taking.quota);
    double got = 0;
    double quotas = 0, committed = 0;
    for (const CacheWindow& cache : window.caches) {
        quotas += cache.quota;
        committed += cache.committed;
    }
    // First what no tenant has.
    const double jobs = std::max(window.used - committed, 0.0);
    const double left = window.capacity - jobs - quotas;
    if (left >= kStep) got = std::min(wanted, steps_down(left));
    wanted -= got;
    for (const std::size_t i : order) {
        if (i == *taker || of(i).at_ease < config.imbalance_windows) continue;
        const double gives = std::min(gift_of(window.caches[i], config), steps_down(wanted));
        after[i] -= gives;
        got += gives;
        wanted -= gives;
    }
    if (got <= 0) return std::nullopt;
    after[*taker] += got;
    Decision decision = cache_decision(window, after, memory);
    char line[200];
    std::snprintf(line, sizeof line,
                  "readers of %s wait %.1f %% of their time for what it had before",
                  taking.name.c_str(), 100 * stall_share(taking, window.length_s));
    decision.reason = line;
    return decision;
}

}  // namespace fabricd
