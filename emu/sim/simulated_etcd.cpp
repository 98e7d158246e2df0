#include "emu/sim/simulated_etcd.hpp"

#include <algorithm>
#include <cstdio>

#include "libfabricshm/base/check.hpp"

namespace emu {

using fabricd::FenceKey;
using fabricd::FenceRecord;
using fabricd::HostRecord;
using fabricd::Incarnation;

EtcdFigures etcd_of_three() noexcept {
    return {};
}

EtcdFigures etcd_of_one() noexcept {
    return {{0.66e-3, 4.4e-3},
            {0.08e-3, 1.9e-3},
            {0.58e-3, 3.6e-3},
            {0.24e-3, 1.0e-3},
            {1.1e-3, 6.5e-3},
            0.5,
            1.6,
            1};
}

std::string simulated_name(int host) {
    char name[16];
    std::snprintf(name, sizeof name, "h%04d", host);
    return name;
}

int number_of_name(const std::string& name) {
    return std::atoi(name.c_str() + 1);
}

SimulatedEtcd::SimulatedEtcd(ClusterTime& time, const EtcdFigures& figures, int hosts)
    : time_(time), figures_(figures) {
    state_.records.resize(static_cast<std::size_t>(hosts));
}

void SimulatedEtcd::append(StoreEvent event) {
    event.at = time_.now();
    event.revision = ++state_.base.revision;
    log_.push_back(std::move(event));
    // At once: the watch's latency is that of what they wait for next.
    for (const int host : std::exchange(waiting_, {})) time_.hurry(host, time_.now());
}

void SimulatedEtcd::go_away(Seconds until) {
    away_until_ = std::max(away_until_, until);
    time_.schedule(away_until_, kStoreIsBack, 0);
}

// A new leader doesn't know when leases were last renewed.
void SimulatedEtcd::come_back() {
    if (!is_there()) return;  // it went away again meanwhile
    for (StoredLease& lease : leases_) {
        if (!lease.is_over) lease.until = time_.now() + lease.ttl;
    }
}

void SimulatedEtcd::lose_data() {
    for (StoredLease& lease : leases_) lease.is_over = true;
    std::ranges::fill(state_.records, std::nullopt);
    state_.fences.clear();
    state_.claims.clear();
    state_.base = {};
}

void SimulatedEtcd::restore(int snapshot) {
    const std::vector<StoredLease>& saved = saved_.at(snapshot).second;
    state_ = saved_.at(snapshot).first;
    for (std::size_t i = 0; i < leases_.size(); ++i) {
        StoredLease& lease = leases_[i];
        const bool was_over = std::exchange(lease.is_over, true);
        if (i >= saved.size()) continue;
        lease.is_over = saved[i].is_over;
        // They have their time again, and nothing looks at those that had ended any more.
        lease.until = time_.now() + lease.ttl;
        if (was_over && !lease.is_over) schedule_check(static_cast<std::int64_t>(i) + 1);
    }
}

StoredLease* SimulatedEtcd::lease_of(std::int64_t lease) {
    if (lease <= 0 || static_cast<std::size_t>(lease) > leases_.size()) return nullptr;
    StoredLease& found = leases_[static_cast<std::size_t>(lease) - 1];
    return found.is_over ? nullptr : &found;
}

void SimulatedEtcd::schedule_check(std::int64_t lease) {
    const StoredLease& its = leases_[static_cast<std::size_t>(lease) - 1];
    time_.schedule(std::max(its.until, time_.now()) + time_.random() * figures_.expiry_scan,
                   kLeaseIsDue, static_cast<int>(lease));
}

void SimulatedEtcd::check_lease(int lease) {
    const StoredLease* its = lease_of(lease);
    if (its == nullptr) return;
    if (!is_there()) {
        time_.schedule(away_until_ + figures_.expiry_scan, kLeaseIsDue, lease);
    } else if (its->until > time_.now()) {
        schedule_check(lease);
    } else {
        end_lease(lease);
    }
}

void SimulatedEtcd::end_lease(std::int64_t lease) {
    StoredLease& its = leases_[static_cast<std::size_t>(lease) - 1];
    its.is_over = true;
    ++counts_.writes;
    auto& record = state_.records[static_cast<std::size_t>(its.host)];
    if (record && record->lease == lease) {
        const Incarnation incarnation = record->record.incarnation;
        record.reset();
        append({.kind = StoreEvent::kGone, .host = its.host, .incarnation = incarnation});
    }
    const auto claims =
        std::erase_if(state_.claims, [&](const auto& item) { return item.second == lease; });
    if (claims > 0) append({.kind = StoreEvent::kOther});
}

std::int64_t SimulatedEtcd::grant(int host, Seconds ttl) {
    leases_.push_back({ttl, time_.now() + ttl, host, false});
    const auto lease = static_cast<std::int64_t>(leases_.size());
    schedule_check(lease);
    return lease;
}

Seconds SimulatedEtcd::keep(std::int64_t lease) {
    StoredLease* its = lease_of(lease);
    if (its == nullptr) return 0;
    its->until = time_.now() + its->ttl;
    return its->ttl;
}

void SimulatedEtcd::revoke(std::int64_t lease) {
    if (lease_of(lease) != nullptr) end_lease(lease);
}

StoredBase SimulatedEtcd::ensure_base(Incarnation wanted) {
    if (state_.base.base == 0) {
        state_.base.base = wanted;
        append({.kind = StoreEvent::kOther});
    }
    return state_.base;
}

void SimulatedEtcd::raise_floor(Incarnation seen, Incarnation wanted) {
    if (state_.base.floor != seen) return;
    state_.base.floor = wanted;
    append({.kind = StoreEvent::kOther});
}

bool SimulatedEtcd::create(int host, const HostRecord& record, std::int64_t lease,
                           Incarnation seen) {
    auto& stored = state_.records[static_cast<std::size_t>(host)];
    // A lease that is over takes no keys.
    if (stored || lease_of(lease) == nullptr || state_.base.floor != seen) return false;
    stored = StoredRecord{record, lease};
    append({.kind = StoreEvent::kRecord, .host = host, .record = record});
    return true;
}

bool SimulatedEtcd::replace(int host, const HostRecord& record, std::int64_t lease) {
    auto& stored = state_.records[static_cast<std::size_t>(host)];
    if (!stored || stored->lease != lease || lease_of(lease) == nullptr) return false;
    stored->record = record;
    append({.kind = StoreEvent::kRecord, .host = host, .record = record});
    return true;
}

const StoredRecord* SimulatedEtcd::record_of(int host) const {
    const auto& stored = state_.records[static_cast<std::size_t>(host)];
    return stored ? &*stored : nullptr;
}

bool SimulatedEtcd::claim(const FenceKey& key, int, std::int64_t lease) {
    const auto held = state_.claims.find(key);
    if (held != state_.claims.end()) return held->second == lease;
    if (lease_of(lease) == nullptr) return false;
    state_.claims.emplace(key, lease);
    append({.kind = StoreEvent::kOther});
    return true;
}

void SimulatedEtcd::write_fence(const FenceKey& key, int host, const FenceRecord& record) {
    // What is fenced stays fenced; a loss is written once.
    if (!record.is_fenced && state_.fences.contains(key)) return;
    state_.fences[key] = record;
    append({.kind = StoreEvent::kFence, .host = host, .incarnation = key.second, .fence = record});
}

}  // namespace emu
