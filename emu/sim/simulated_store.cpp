#include "emu/sim/simulated_store.hpp"

#include <algorithm>
#include <cmath>

#include "libfabricshm/base/check.hpp"

namespace emu {

using fabricd::BootTime;
using fabricd::Duration;
using fabricd::FenceKey;
using fabricd::FenceRecord;
using fabricd::HostPlace;
using fabricd::HostRecord;
using fabricd::Incarnation;
using fabricd::Result;
using fabricd::StoreLease;
using fabricd::StoreNews;
using fabricshm::Errc;
using fabricshm::Error;

namespace {

constexpr int kBaseShift = 20;
constexpr Seconds kLeastAttempt = 0.05;
constexpr Incarnation kToday = 1'795'000'000;  // seconds: only has to be large, and to rise

Seconds seconds_of(Duration length) {
    return std::chrono::duration<double>(length).count();
}

Duration duration_of(Seconds length) {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(std::llround(length * 1e9)));
}

}  // namespace

// As the daemon's options of etcd: a third of a lease for a renewal, and each member gets a share.
SimulatedStore::SimulatedStore(ClusterTime& time, SimulatedEtcd& etcd, int host, Seconds ttl)
    : time_(time),
      etcd_(etcd),
      host_(host),
      total_(ttl / 3),
      attempt_(std::clamp(ttl / 8, 0.25, 1.0)),
      known_(etcd.records().size()) {}

void SimulatedStore::break_watch() {
    if (!has_watch_) return;
    has_watch_ = false;
    time_.hurry(host_, time_.now());
}

void SimulatedStore::arrive() {
    if (!effect_ || !is_reachable()) return;
    std::exchange(effect_, nullptr)();
    has_arrived_ = true;
    answered_revision_ = etcd_.base().revision;
}

void SimulatedStore::limit_calls_until(BootTime end) noexcept {
    limit_ = ClusterTime::seconds(end);
}

bool SimulatedStore::call(const Latency& latency, std::uint64_t& count,
                          std::function<void()> effect) {
    const Seconds end =
        std::max(std::min(time_.now() + total_, limit_), time_.now() + kLeastAttempt);
    while (!is_ending()) {
        sent_ = time_.now();
        ++count;
        const Seconds takes = std::min(time_.random(latency.median, latency.p99), attempt_ * 0.9);
        effect_ = effect;
        has_arrived_ = false;
        time_.schedule(sent_ + takes / 2, kRequestArrives, host_);
        const Seconds answer = sent_ + takes;
        while (time_.now() < answer && !is_ending()) time_.sleep(host_, answer);
        effect_ = nullptr;
        if (is_ending()) return false;
        if (has_arrived_ && is_reachable()) {
            if (&latency == &etcd_.figures().write) {
                seen_revision_ = std::max(seen_revision_, answered_revision_);
            }
            return true;
        }
        const Seconds until = std::min(sent_ + attempt_, std::max(end, sent_ + kLeastAttempt));
        while (time_.now() < until && !is_ending()) time_.sleep(host_, until);
        // The next member is asked; the watch was at this one.
        has_watch_ = false;
        if (time_.now() >= end) return false;
    }
    return false;
}

Incarnation SimulatedStore::next_incarnation() {
    while (!is_ending()) {
        const Incarnation today = (kToday + static_cast<Incarnation>(time_.now())) << kBaseShift;
        const Incarnation wanted = std::max(newest_ + (1u << kBaseShift), today);
        StoredBase base;
        if (!call(etcd_.figures().write, etcd_.counts().writes,
                  [&] { base = etcd_.ensure_base(wanted); })) {
            return 0;
        }
        if (identity_ == 0) identity_ = base.base;
        floor_ = base.floor;
        const Incarnation needed = std::max(newest_ + 1, today);
        const Incarnation next = std::max(base.base, base.floor) + base.revision;
        if (next >= needed) return next;
        if (!call(etcd_.figures().write, etcd_.counts().writes,
                  [&] { etcd_.raise_floor(base.floor, needed); })) {
            return 0;
        }
    }
    return 0;
}

HostPlace SimulatedStore::placed(Incarnation incarnation, Seconds ttl, Seconds sent) {
    newest_ = std::max(newest_, incarnation);
    last_renewed_ = std::max(last_renewed_, sent);
    return {incarnation, lease_, {duration_of(ttl), ClusterTime::boot_time(sent)}};
}

Result<HostPlace> SimulatedStore::join(const std::string&, const HostRecord& wanted, Duration ttl) {
    const Error late{Errc::kTimeout, 0, "join cluster"};
    Incarnation next = next_incarnation();
    if (next == 0) return late;
    const Seconds length = std::ceil(seconds_of(ttl));
    std::int64_t lease = 0;
    if (!call(etcd_.figures().grant, etcd_.counts().writes, [&] {
            lease = etcd_.grant(host_, length);
            last_at_store_ = time_.now();
        })) {
        return late;
    }
    const Seconds sent = sent_;
    HostRecord record = wanted;
    while (true) {
        record.incarnation = wanted.incarnation != 0 ? wanted.incarnation : next;
        StoredRecord its;
        const bool answered = call(etcd_.figures().write, etcd_.counts().writes, [&] {
            const Incarnation seen = wanted.incarnation != 0 ? etcd_.base().floor : floor_;
            (void)etcd_.create(host_, record, lease, seen);
            const StoredRecord* stored = etcd_.record_of(host_);
            its = stored != nullptr ? *stored : StoredRecord{};
        });
        if (!answered) return late;
        if (its.lease == lease) {
            lease_ = lease;
            return placed(record.incarnation, length, sent);
        }
        const Incarnation there = its.record.incarnation;
        const bool is_own = its.lease != 0 && its.record.instance == wanted.instance &&
                            (wanted.incarnation == 0 || there == wanted.incarnation);
        const bool is_past =
            its.lease != 0 && its.record.boot == wanted.boot && there < wanted.incarnation;
        if (its.lease != 0 && (is_own || !is_past)) {
            (void)call(etcd_.figures().write, etcd_.counts().writes, [&] { etcd_.revoke(lease); });
            // Written by a call before, whose answer was lost, under the lease of that call.
            if (!is_own) return Error{Errc::kBusy, 0, "join cluster"};
            return resume("", its.record, its.lease);
        }
        if (is_past &&
            !call(etcd_.figures().write, etcd_.counts().writes, [&] { etcd_.revoke(its.lease); })) {
            return late;
        }
        if (its.lease == 0 && (next = next_incarnation()) == 0) return late;
    }
}

Result<HostPlace> SimulatedStore::resume(const std::string&, const HostRecord& record,
                                         std::int64_t lease) {
    FABRIC_TRY(const StoreLease times, renew(lease));
    bool is_there = false;
    if (!call(etcd_.figures().write, etcd_.counts().writes,
              [&] { is_there = etcd_.replace(host_, record, lease); })) {
        return Error{Errc::kTimeout, 0, "resume"};
    }
    if (!is_there) return Error{Errc::kNotFound, 0, "resume"};
    lease_ = lease;
    return placed(record.incarnation, seconds_of(times.ttl), ClusterTime::seconds(times.sent));
}

Result<StoreLease> SimulatedStore::renew(std::int64_t lease) {
    Seconds ttl = 0;
    if (!call(etcd_.figures().keep, etcd_.counts().keeps, [&] {
            ttl = etcd_.keep(lease);
            last_at_store_ = time_.now();
        })) {
        return Error{Errc::kTimeout, 0, "renew"};
    }
    if (ttl <= 0) return Error{Errc::kNotFound, 0, "renew"};
    return StoreLease{duration_of(ttl), ClusterTime::boot_time(sent_)};
}

Result<StoreLease> SimulatedStore::keep() {
    auto kept = renew(lease_);
    if (kept.ok()) last_renewed_ = std::max(last_renewed_, sent_);
    return kept;
}

void SimulatedStore::note(const StoreEvent& event, StoreNews& news) {
    ++etcd_.counts().events;
    const auto host = static_cast<std::size_t>(event.host);
    switch (event.kind) {
        case StoreEvent::kRecord:
            newest_ = std::max(newest_, event.record.incarnation);
            if (known_[host] != 0 && known_[host] != event.record.incarnation) {
                news.deleted.emplace_back(simulated_name(event.host), known_[host]);
            }
            known_[host] = event.record.incarnation;
            news.hosts.emplace_back(simulated_name(event.host), event.record);
            return;
        case StoreEvent::kGone:
            if (known_[host] == 0) return;
            news.deleted.emplace_back(simulated_name(event.host), known_[host]);
            known_[host] = 0;
            return;
        case StoreEvent::kFence:
            newest_ = std::max(newest_, event.incarnation);
            news.fences.push_back({{simulated_name(event.host), event.incarnation}, event.fence});
            return;
        case StoreEvent::kOther:
            return;
    }
}

Result<StoreNews> SimulatedStore::read_all() {
    StoreNews news;
    news.is_whole = true;
    StoredBase base;
    const bool answered = call(etcd_.figures().read, etcd_.counts().reads, [&] {
        news.hosts.clear();
        news.deleted.clear();
        news.fences.clear();
        for (std::size_t host = 0; host < known_.size(); ++host) {
            const auto& stored = etcd_.records()[host];
            if (stored) {
                news.hosts.emplace_back(simulated_name(static_cast<int>(host)), stored->record);
            }
        }
        news.fences.assign(etcd_.fences().begin(), etcd_.fences().end());
        base = etcd_.base();
        next_event_ = etcd_.log().size();
    });
    if (!answered) return Error{Errc::kTimeout, 0, "read cluster"};
    news.data_lost = (identity_ != 0 && base.base != identity_) || base.revision < seen_revision_;
    identity_ = base.base;
    seen_revision_ = base.revision;
    std::vector<Incarnation> seen(known_.size());
    for (const auto& [name, record] : news.hosts) {
        newest_ = std::max(newest_, record.incarnation);
        seen[static_cast<std::size_t>(number_of_name(name))] = record.incarnation;
    }
    for (const auto& [key, fence] : news.fences) newest_ = std::max(newest_, key.second);
    for (std::size_t host = 0; host < known_.size(); ++host) {
        if (known_[host] == 0 || seen[host] == known_[host]) continue;
        news.deleted.emplace_back(simulated_name(static_cast<int>(host)), known_[host]);
    }
    known_ = std::move(seen);
    has_watch_ = true;
    visible_at_ = -1;
    return news;
}

Result<StoreNews> SimulatedStore::news(Duration wait) {
    if (!has_watch_) return read_all();
    const Seconds end = time_.now() + seconds_of(wait);
    while (!is_ending()) {
        // It is read from the start with the next call: an empty answer, as of a watch that
        // broke.
        if (!has_watch_) return StoreNews{};
        const bool has_next = next_event_ < etcd_.log().size();
        if (has_next && visible_at_ < 0) {
            visible_at_ = etcd_.log()[next_event_].at +
                          time_.random(etcd_.figures().watch.median, etcd_.figures().watch.p99);
        }
        if (has_next && visible_at_ <= time_.now() && !is_cut_) break;
        if (time_.now() >= end) return StoreNews{};
        if (!has_next || is_cut_) etcd_.await(host_);
        const bool knows_when = has_next && !is_cut_;
        time_.sleep(host_, knows_when ? std::min(end, visible_at_) : end);
    }
    StoreNews news;
    if (is_ending()) return news;
    const Seconds before = time_.now() - etcd_.figures().watch.median;
    do {
        seen_revision_ = std::max(seen_revision_, etcd_.log()[next_event_].revision);
        note(etcd_.log()[next_event_++], news);
    } while (next_event_ < etcd_.log().size() && etcd_.log()[next_event_].at <= before);
    visible_at_ = -1;
    return news;
}

Result<bool> SimulatedStore::claim(const FenceKey& key) {
    bool is_ours = false;
    if (!call(etcd_.figures().write, etcd_.counts().writes,
              [&] { is_ours = etcd_.claim(key, host_, lease_); })) {
        return Error{Errc::kTimeout, 0, "claim"};
    }
    return is_ours;
}

Result<void> SimulatedStore::write_fence(const FenceKey& key, const FenceRecord& record) {
    if (!call(etcd_.figures().write, etcd_.counts().writes,
              [&] { etcd_.write_fence(key, number_of_name(key.first), record); })) {
        return Error{Errc::kTimeout, 0, "write fence"};
    }
    return {};
}

Result<void> SimulatedStore::leave() {
    if (!call(etcd_.figures().write, etcd_.counts().writes, [&] { etcd_.revoke(lease_); })) {
        return Error{Errc::kTimeout, 0, "leave"};
    }
    return {};
}

}  // namespace emu
