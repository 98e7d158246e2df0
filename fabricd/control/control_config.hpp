// What the control loop is configured by: section [control] of the configuration, where each field
// has its range and its help. Every coefficient of docs/control_reference.md is here.

#pragma once

#include <cstdint>
#include <string>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/telemetry_page.hpp"

namespace fabricd {

/// Counts of windows are counts of windows in which the job made steps.
struct ControlConfig {
    std::string mode = "dry-run";  // "off", "dry-run", "on"
    // Of shares, units, sync, drain, placement, quota, compute, pool, cache. Without those that
    // could surprise: sync and drain change what a job computes, compute and pool take from one
    // tenant what another one needs.
    std::string actions = "shares,units,placement,quota";
    fabricshm::Duration window = std::chrono::seconds(1);
    std::int64_t half_life = 5;  // windows
    fabricshm::Bytes journal_bytes = 8 * fabricshm::kMiB;

    // Guards.
    double imbalance_enter = 0.10;
    double imbalance_leave = 0.05;
    std::int64_t imbalance_windows = 3;
    double gain = 0.05;         // least predicted one
    std::int64_t horizon = 60;  // windows within which an action has to pay for itself
    std::int64_t probation = 5;
    std::int64_t cool_down = 20;
    std::int64_t silent_windows = 5;  // without a step, until a job counts as stale
    double noise_floor = 0.02;

    // S113.
    double share_step = 0.5;    // part of the batch that changes hands at once
    double share_floor = 0.05;  // of the even share
    // S212, S213.
    double urgency_weight = 0.7;
    double size_weight = 0.3;
    fabricshm::Duration urgency_time = std::chrono::seconds(1);
    bool large_first = false;
    // S222.
    double capability_power = 1;
    double response_power = 1;
    // S312, S313.
    double speed_power = 1;
    double delay_power = 1;
    double sync_share = 0.10;
    std::int64_t sync_max = 16;
    // S322.
    double quota_filled = 0.85;
    double quota_speed_power = 0.5;
    double quota_delay = 0.25;
    double quota_busy = 0.25;
    double quota_step = 0.25;
    fabricshm::Bytes quota_reserve = 0;
    double quota_min = 0.1;  // of its promise, that an idle tenant does not lend
    // Caches.
    double cache_stall = 0.02;  // of its readers' time, above which more memory is worth it
    double cache_min = 0.125;   // of its size, that it keeps
    // S422.
    double share_min = 0.1;
    // The alarm.
    double alarm_speed = 0.2;  // of the median rank's
    std::int64_t alarm_windows = 20;
    // Faults of a device that take its ranks' work away, of ecc, xid, stopped and thermal. Heat
    // shows in measured speeds, which shares follow.
    std::string drain_faults = "ecc,xid,stopped";
    // Not a key: ranks that a directive page holds. 0: there is no page.
    std::int64_t max_directed = fabricshm::kPeersMax;
    std::int64_t drain_retry = 60;  // windows until a drained rank is tried again; 0: never
};

/// Whether `word` is one of the comma-separated words of `list`.
inline bool has_word(const std::string& list, const std::string& word) {
    return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

}  // namespace fabricd
