// Cache policy: how much of the pool caches may have, and how much is left for jobs. Pure, like the
// other policies. docs/control_loop.md.
//
// A byte is worth to a cache what it would save its readers of waiting, and to jobs what they were
// refused, or had to wait for. Jobs come first: a job that lacks memory does not run, one whose
// cache is small reads slower. That a request waits for a cache to give way is the daemon's own
// doing (fabricd/pool/elastic.hpp); here it is decided what does not go back to the cache after it.

#pragma once

#include <map>
#include <optional>
#include <string>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/journal/window.hpp"

namespace fabricd {

/// What several windows have shown, for hysteresis. Plain data; update() after each window.
struct CacheMemory {
    struct Cache {
        std::int64_t stalled = 0;  // windows in a row in which more memory would have helped
        std::int64_t at_ease = 0;  // and in which its readers did not wait
    };
    std::map<std::string, Cache> caches;
    std::int64_t calm = 0;  // windows since requests lacked memory
    double demand = 0;      // bytes that they lacked in those before, at most in one window
};

/// Counts the window. Sound windows only: is_sound().
void update(CacheMemory& memory, const CacheRoomWindow& window, const ControlConfig& config);

/// Numbers that can be reckoned with, and quotas that there can be.
bool is_sound(const CacheRoomWindow& window);

/// Which part of the time a reader waited.
double stall_share(const CacheWindow& cache, double length_s) noexcept;

/// After requests lacked memory: the caches whose readers wait least give up what was lacking, at
/// most control.quota_step of each, and none below control.cache_min of its size or what it can't
/// do without. Nothing has to be judged: a job that runs is no bet.
std::optional<Decision> propose_cache_gifts(const CacheRoomWindow& window,
                                            const CacheMemory& memory, const ControlConfig& config);

/// A cache whose readers waited for control.cache_stall of the time, for imbalance_windows in a
/// row, while it fetched again what it had had before, gets more: what no tenant has, and
/// what a cache has whose readers don't wait; at most control.quota_step of it at once, and nothing
/// within cool_down windows after requests lacked memory. Quotas together are never more than the
/// pool, and what one cache gets from another is what that one gives.
std::optional<Decision> propose_cache_quotas(const CacheRoomWindow& window,
                                             const CacheMemory& memory,
                                             const ControlConfig& config);

}  // namespace fabricd
