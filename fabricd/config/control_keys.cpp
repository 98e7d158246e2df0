#include "fabricd/config/control_keys.hpp"

#include "fabricd/config/key_kinds.hpp"
#include "fabricd/control/journal/action.hpp"

namespace fabricd {

namespace {

using fabricshm::kGiB;
using fabricshm::kMiB;
using std::chrono::milliseconds;

// What the loop as a whole does.
std::vector<ConfigKey> loop_keys() {
    return {
        choice_key("control.mode", {"off", "dry-run", "on"}, FABRIC_FIELD(control.mode),
                   "off: nothing is watched; dry-run: decisions are made and journalled, but not "
                   "carried out; on: they are carried out."),
        words_key(
            "control.actions", action_permissions(), FABRIC_FIELD(control.actions),
            "What may be changed. sync changes what a job computes, drain takes slow ranks out "
            "of it, compute, pool and cache take from one tenant for another: these have to be "
            "asked "
            "for."),
        duration_key("control.window", milliseconds(100), std::chrono::minutes(5),
                     FABRIC_FIELD(control.window), "How long the loop looks before it thinks."),
        count_key("control.half_life", 1, 1000, FABRIC_FIELD(control.half_life),
                  "Windows after which a measurement counts half."),
        size_key("control.journal_bytes", kMiB, 64 * kGiB, nullptr,
                 FABRIC_FIELD(control.journal_bytes),
                 "Largest size of the decision journal, both of its files together."),
    };
}

// What stands between a prediction and an action.
std::vector<ConfigKey> guard_keys() {
    return {
        number_key("control.imbalance_enter", 0, 1, FABRIC_FIELD(control.imbalance_enter),
                   "Share of device time lost to waiting above which shares are corrected."),
        number_key("control.imbalance_leave", 0, 1, FABRIC_FIELD(control.imbalance_leave),
                   "Share below which they are left alone again."),
        count_key("control.imbalance_windows", 1, 1000, FABRIC_FIELD(control.imbalance_windows),
                  "Windows in a row before either."),
        number_key("control.gain", 0, 10, FABRIC_FIELD(control.gain),
                   "Least predicted gain of an action, as a share."),
        count_key("control.horizon", 1, 100000, FABRIC_FIELD(control.horizon),
                  "Windows within which an action has to pay for itself."),
        count_key("control.probation", 1, 1000, FABRIC_FIELD(control.probation),
                  "Windows after which an action is judged."),
        count_key("control.cool_down", 0, 100000, FABRIC_FIELD(control.cool_down),
                  "Windows that a kind of action waits after one was undone."),
        count_key("control.silent_windows", 1, 100000, FABRIC_FIELD(control.silent_windows),
                  "Windows without a step after which nothing is decided about a job."),
        number_key("control.noise_floor", 0, 1, FABRIC_FIELD(control.noise_floor),
                   "Scatter of samples/s that is always taken for noise, as a share."),
    };
}

// Coefficients of the formulas, in the order of the stages.
std::vector<ConfigKey> stage_keys() {
    return {
        number_key("control.share_step", 0.01, 1, FABRIC_FIELD(control.share_step),
                   "Part of a batch that changes hands at once (S113)."),
        number_key("control.share_floor", 0, 0.99, FABRIC_FIELD(control.share_floor),
                   "Least share of a rank, as a part of the even share (S113)."),
        number_key("control.urgency_weight", 0, 1e6, FABRIC_FIELD(control.urgency_weight),
                   "Weight of a shard's urgency (S212, alpha)."),
        number_key("control.size_weight", 0, 1e6, FABRIC_FIELD(control.size_weight),
                   "Weight of a shard's size (S212, beta)."),
        duration_key(
            "control.urgency_time", milliseconds(1), std::chrono::minutes(60),
            FABRIC_FIELD(control.urgency_time),
            "A shard needed after so long is half as urgent as one needed now (S212, tau)."),
        flag_key("control.large_first", FABRIC_FIELD(control.large_first),
                 "Place large shards first instead of small ones (S212)."),
        number_key("control.capability_power", 0, 10, FABRIC_FIELD(control.capability_power),
                   "Power of a node's speed (S222, alpha)."),
        number_key("control.response_power", 0, 10, FABRIC_FIELD(control.response_power),
                   "Power of a node's response time (S222, beta)."),
        number_key("control.speed_power", 0, 10, FABRIC_FIELD(control.speed_power),
                   "Power of the steps per second (S312, a)."),
        number_key("control.delay_power", 0, 10, FABRIC_FIELD(control.delay_power),
                   "Power of what a synchronisation adds (S312, b)."),
        number_key("control.sync_share", 0.001, 1, FABRIC_FIELD(control.sync_share),
                   "Share of the time that synchronising may take (S313, rho)."),
        count_key("control.sync_max", 1, 100000, FABRIC_FIELD(control.sync_max),
                  "Most steps between two synchronisations (S313)."),
        number_key("control.quota_filled", 0.01, 1, FABRIC_FIELD(control.quota_filled),
                   "Part of a vGPU's quota in use when it is just right (S322)."),
        number_key("control.quota_speed_power", 0, 10, FABRIC_FIELD(control.quota_speed_power),
                   "Power of a device's speed (S322, gamma)."),
        number_key("control.quota_delay", 0, 100, FABRIC_FIELD(control.quota_delay),
                   "How much delay counts against a vGPU (S322, lambda)."),
        number_key("control.quota_busy", 0, 100, FABRIC_FIELD(control.quota_busy),
                   "How much the load of others counts against it (S322, lambda)."),
        number_key("control.quota_step", 0.01, 1, FABRIC_FIELD(control.quota_step),
                   "Largest change of a quota at once, as a share (S322)."),
        size_key("control.quota_reserve", kMiB, 64 * kTiB, "the device file's",
                 FABRIC_FIELD(control.quota_reserve), "Memory of a device that stays free (S322)."),
        number_key("control.quota_min", 0, 1, FABRIC_FIELD(control.quota_min),
                   "Part of its promised memory that an idle device or vGPU does not lend (S323, "
                   "S413)."),
    };
}

// Of tenants of the host, and of ranks that are watched.
std::vector<ConfigKey> tenant_keys() {
    return {
        number_key(
            "control.cache_stall", 0, 1, FABRIC_FIELD(control.cache_stall),
            "Part of their time that a cache's readers wait, above which it gets more memory."),
        number_key("control.cache_min", 0, 1, FABRIC_FIELD(control.cache_min),
                   "Part of its size that a cache keeps, whatever jobs lack."),
        number_key("control.share_min", 0, 1, FABRIC_FIELD(control.share_min),
                   "Least compute share of a vGPU, as a part of the even one (S422)."),
        number_key("control.alarm_speed", 0, 1, FABRIC_FIELD(control.alarm_speed),
                   "A rank below this part of the median speed is slow."),
        count_key("control.alarm_windows", 1, 100000, FABRIC_FIELD(control.alarm_windows),
                  "Windows in a row of being slow that raise the alarm."),
        words_key("control.drain_faults", {"ecc", "xid", "stopped", "thermal"},
                  FABRIC_FIELD(control.drain_faults),
                  "Faults of a GPU that take the work of its ranks away: memory errors that could "
                  "not be corrected, errors that need a reset, no answer, heat. Empty: none."),
        count_key("control.drain_retry", 0, 100000, FABRIC_FIELD(control.drain_retry),
                  "Windows after which a drained rank is tried again; doubles, at most four times, "
                  "with each try that fails. 0: never."),
    };
}

}  // namespace

std::vector<ConfigKey> control_keys() {
    std::vector<ConfigKey> keys;
    for (auto* section : {loop_keys, guard_keys, stage_keys, tenant_keys}) {
        for (auto& key : section()) keys.push_back(std::move(key));
    }
    return keys;
}

}  // namespace fabricd
