#include "fabricd/net/fence.hpp"

#include <algorithm>

namespace fabricd {

namespace {

fabricshm::Duration pause_after(int attempts) noexcept {
    const int doublings = std::clamp(attempts - 1, 0, 6);
    return std::min<fabricshm::Duration>(kFirstFencePause * (1 << doublings), kMaxFencePause);
}

bool is_lost(const HostTable& hosts, const FenceKey& key) {
    const HostLife* life = find_life(hosts, key.first, key.second);
    return life != nullptr && life->state == HostState::kLost;
}

bool is_up(const HostTable& hosts, const std::string& name) {
    const HostLife* newest = newest_life(hosts, name);
    return newest != nullptr && newest->state == HostState::kUp;
}

}  // namespace

bool is_needless(const HostTable& hosts, const FenceKey& key) {
    return !is_lost(hosts, key) || is_up(hosts, key.first);
}

void follow(FenceTable& fences, const HostTable& hosts, BootTime now) {
    if (hosts.losses == fences.followed) return;
    fences.followed = hosts.losses;
    for (const auto& [name, host] : hosts.hosts) {
        for (const HostLife& life : host.lives) {
            if (life.state != HostState::kLost) continue;
            fences.jobs.try_emplace({name, life.number}, FenceJob{.next_attempt = now});
        }
    }
    // A command that runs is waited for even when a person was faster: its end has to find its job.
    std::erase_if(fences.jobs, [&](const auto& item) {
        return item.second.phase != FencePhase::kRunning && !is_lost(hosts, item.first);
    });
}

std::optional<FenceKey> next_to_run(const FenceTable& fences, const HostTable& hosts,
                                    BootTime now) {
    if (!fences.has_command) return std::nullopt;
    for (const auto& [key, job] : fences.jobs) {
        if (job.phase == FencePhase::kRunning) return std::nullopt;
    }
    for (const auto& [key, job] : fences.jobs) {
        if (now >= job.next_attempt && !is_needless(hosts, key)) return key;
    }
    return std::nullopt;
}

void note_claim(FenceTable& fences, const FenceKey& key, bool is_ours, BootTime now) {
    const auto job = fences.jobs.find(key);
    if (job == fences.jobs.end()) return;
    job->second.phase = is_ours ? FencePhase::kRunning : FencePhase::kClaimed;
    // The other daemon may die with its claim, which then goes with its lease.
    if (!is_ours) job->second.next_attempt = now + kFirstFencePause;
}

bool note_command(FenceTable& fences, const FenceKey& key, int status, BootTime now) {
    const auto job = fences.jobs.find(key);
    if (job == fences.jobs.end()) return status == 0;
    // It may have been fenced by other means meanwhile, and was kept for this end of its command.
    fences.followed = ~std::uint64_t{0};
    if (status == 0) {
        fences.jobs.erase(job);
        return true;
    }
    job->second.phase = FencePhase::kWaiting;
    job->second.last_status = status;
    ++job->second.attempts;
    job->second.next_attempt = now + pause_after(job->second.attempts);
    return false;
}

}  // namespace fabricd
