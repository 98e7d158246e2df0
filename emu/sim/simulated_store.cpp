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
        if (has_arrived_ && is_reachable()) return true;
        const Seconds until = std::min(sent_ + attempt_, std::max(end, sent_ + kLeastAttempt));
        while (time_.now() < until && !is_ending()) time_.sleep(host_, until);
        // The next member is asked; the watch was at this one.
        has_watch_ = false;
        if (time_.now() >= end) return false;
    }
    return false;
}

bool SimulatedStore::ensure_base() {
    const Incarnation today = (kToday + static_cast<Incarnation>(time_.now())) << kBaseShift;
    const Incarnation wanted = std::max(newest_ + (1u << kBaseShift), today);
    Incarnation base = 0;
    if (!call(etcd_.figures().write, etcd_.counts().writes,
              [&] { base = etcd_.ensure_base(wanted); })) {
        return false;
    }
    base_ = base;
    return true;
}

HostPlace SimulatedStore::placed(Incarnation incarnation, Seconds ttl, Seconds sent) {
    newest_ = std::max(newest_, incarnation);
    last_renewed_ = std::max(last_renewed_, sent);
    return {incarnation, lease_, {duration_of(ttl), ClusterTime::boot_time(sent)}};
}

Result<HostPlace> SimulatedStore::join(const std::string&, const HostRecord& record, Duration ttl) {
    const Error late{Errc::kTimeout, 0, "join cluster"};
    if (!ensure_base()) return late;
    const Seconds wanted = std::ceil(seconds_of(ttl));
    std::int64_t lease = 0;
    if (!call(etcd_.figures().grant, etcd_.counts().writes, [&] {
            lease = etcd_.grant(host_, wanted);
            last_at_store_ = time_.now();
        })) {
        return late;
    }
    const Seconds sent = sent_;
    Incarnation incarnation = 0;
    StoredRecord its;
    const bool answered = call(etcd_.figures().write, etcd_.counts().writes, [&] {
        (void)etcd_.create(host_, record, lease);
        const StoredRecord* stored = etcd_.record_of(host_);
        if (stored == nullptr) return;
        its = *stored;
        if (its.lease == lease) incarnation = its.record.incarnation;
    });
    if (!answered) return late;
    if (incarnation == 0) {
        (void)call(etcd_.figures().write, etcd_.counts().writes, [&] { etcd_.revoke(lease); });
        // Written by a call before, whose answer was lost, under the lease of that call.
        const bool is_own =
            its.record.instance == record.instance && its.written == record.incarnation;
        if (its.lease == 0 || !is_own) return Error{Errc::kBusy, 0, "join cluster"};
        return resume("", its.record, its.lease);
    }
    lease_ = lease;
    return placed(incarnation, wanted, sent);
}

Result<HostPlace> SimulatedStore::resume(const std::string&, const HostRecord& record,
                                         std::int64_t lease) {
    if (!ensure_base()) return Error{Errc::kTimeout, 0, "resume"};
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
        news.data_lost = base_ != 0 && etcd_.base() != base_;
        next_event_ = etcd_.log().size();
    });
    if (!answered) return Error{Errc::kTimeout, 0, "read cluster"};
    base_ = etcd_.base();
    std::vector<Incarnation> seen(known_.size());
    for (const auto& [name, record] : news.hosts) {
        newest_ = std::max(newest_, record.incarnation);
        seen[static_cast<std::size_t>(number_of_name(name))] = record.incarnation;
    }
    for (const auto& [key, fence] : news.fences) newest_ = std::max(newest_, key.second);
    for (std::size_t host = 0; host < known_.size(); ++host) {
        if (known_[host] == 0 || seen[host] != 0) continue;
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
