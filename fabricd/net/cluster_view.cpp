#include "fabricd/net/cluster_view.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "fabricd/telemetry/metrics_text.hpp"

namespace fabricd {

namespace {

std::int64_t ms_between(BootTime from, BootTime to) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(to - from).count();
}

constexpr std::pair<const char*, FenceStage> kFencedBy[] = {
    {"command", FenceStage::kCommanded}, {"boot", FenceStage::kBoot},
    {"self", FenceStage::kSelf},         {"left", FenceStage::kLeft},
    {"operator", FenceStage::kOperator},
};

std::string fence_text(const HostLife& life, const FenceTable& fences, const std::string& host) {
    if (life.state == HostState::kFenced) return life.how + " by " + life.by;
    if (life.state != HostState::kLost) return "";
    const auto job = fences.jobs.find({host, life.number});
    if (!fences.has_command || job == fences.jobs.end()) return "waits for a person";
    if (job->second.phase == FencePhase::kRunning) return "command runs";
    if (job->second.phase == FencePhase::kClaimed) return "another daemon's command";
    if (job->second.attempts == 0) return "waits for its turn";
    return "command failed with " + std::to_string(job->second.last_status) + ", " +
           std::to_string(job->second.attempts) + (job->second.attempts == 1 ? " try" : " tries");
}

FenceStage fence_stage(const HostLife& life, const FenceTable& fences, const std::string& host) {
    if (life.state == HostState::kFenced) {
        for (const auto& [how, stage] : kFencedBy) {
            if (life.how == how) return stage;
        }
        return FenceStage::kOther;
    }
    if (life.state != HostState::kLost) return FenceStage::kNone;
    const auto job = fences.jobs.find({host, life.number});
    if (!fences.has_command || job == fences.jobs.end()) return FenceStage::kPerson;
    const bool failed = job->second.phase == FencePhase::kWaiting && job->second.attempts > 0;
    return failed ? FenceStage::kFailed : FenceStage::kCommand;
}

}  // namespace

const char* name_of(LeaseStanding standing) noexcept {
    switch (standing) {
        case LeaseStanding::kNone:
            return "none";
        case LeaseStanding::kHeld:
            return "held";
        case LeaseStanding::kStale:
            return "stale";
        case LeaseStanding::kEnded:
            return "ended";
    }
    return "unknown";
}

bool is_gone(HostState state) noexcept {
    return state == HostState::kLost || state == HostState::kFenced;
}

std::vector<HostView> host_views(const HostTable& table, const FenceTable& fences,
                                 const OwnPlace& own, BootTime now) {
    std::vector<HostView> views;
    for (const auto& [name, host] : table.hosts) {
        for (auto life = host.lives.rbegin(); life != host.lives.rend(); ++life) {
            HostView view;
            view.name = name;
            view.incarnation = life->number;
            view.is_newest = life == host.lives.rbegin();
            view.state = view.is_newest ? state_of(host) : life->state;
            view.is_self = name == own.host && life->number == own.incarnation &&
                           (own.incarnation != 0 || life->state == HostState::kListed);
            view.state_ms = ms_between(life->since, now);
            view.fence = fence_text(*life, fences, name);
            view.fence_stage = fence_stage(*life, fences, name);
            if (view.is_newest) {
                view.pool = host.record.pool;
                view.address = host.record.address;
            }
            views.push_back(std::move(view));
        }
    }
    return views;
}

std::string cluster_metrics(const ClusterView& view) {
    if (view.cluster.empty()) return "";
    MetricsText text;
    text.family("fabricd_cluster_hosts", MetricType::kGauge, "Incarnations of hosts by state.");
    for (const HostState state : {HostState::kListed, HostState::kUp, HostState::kBack,
                                  HostState::kSuspect, HostState::kLost, HostState::kFenced}) {
        const auto count = std::count_if(view.hosts.begin(), view.hosts.end(),
                                         [&](const HostView& host) { return host.state == state; });
        text.sample({{"state", name_of(state)}}, static_cast<std::uint64_t>(count));
    }
    text.family("fabricd_cluster_admits", MetricType::kGauge,
                "1 while groups over several hosts may be made.");
    text.sample({}, view.admits ? 1.0 : 0.0);
    if (view.store != "etcd") return text.text();
    text.family("fabricd_cluster_lease_seconds", MetricType::kGauge,
                "Until sessions on shared memory end, unless the store answers; 0: no place.");
    text.sample({}, static_cast<double>(view.lease_ms) * 1e-3);
    const struct {
        const char* name;
        const char* help;
        std::uint64_t value;
    } counters[] = {
        {"fabricd_cluster_renewals_total", "Answers that renewed the lease.", view.counts.renewals},
        {"fabricd_cluster_failures_total", "Calls of the store that failed.", view.counts.failures},
        {"fabricd_cluster_self_fences_total", "Leases that ended with sessions on shared memory.",
         view.counts.self_fences},
        {"fabricd_cluster_fence_commands_total", "Fence commands that ended well.",
         view.counts.commands_done},
        {"fabricd_cluster_fence_command_failures_total", "Fence commands that failed.",
         view.counts.commands_failed},
    };
    for (const auto& counter : counters) {
        text.family(counter.name, MetricType::kCounter, counter.help);
        text.sample({}, counter.value);
    }
    return text.text();
}

}  // namespace fabricd
