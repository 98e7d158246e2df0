#include "fabricd/net/cluster_member.hpp"

#include <algorithm>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::explain;
using fabricshm::log;
using fabricshm::LogLevel;

namespace {

constexpr int kWritesOfTurn = 64;
constexpr Duration kJoinPause = std::chrono::seconds(1);
constexpr Duration kCallsLimit = std::chrono::seconds(2);  // while no lease is in danger

// Thrice per lease: two answers may be lost.
Duration renewal_pause(Duration ttl) {
    return ttl / 3;
}

}  // namespace

ClusterMember::ClusterMember(MemberParts parts) : parts_(std::move(parts)) {
    FABRIC_CHECK(parts_.store != nullptr && parts_.end_shared_sessions && parts_.keep_place &&
                 parts_.clock);
    table_.grace = grace_after_deletion(parts_.ttl);
    const auto ttl_ms = std::chrono::duration_cast<std::chrono::milliseconds>(parts_.ttl).count();
    parts_.record.ttl_ms = static_cast<std::uint64_t>(ttl_ms);
    fences_.has_command = parts_.runner != nullptr;
    // The daemon before may have renewed it until now, and no longer.
    resume_until_ = parts_.clock() + parts_.ttl - kFenceMargin;
    // From a place of its own: a session must not take the version of another start of the daemon
    // for this one's.
    table_.version = first_version(parts_.record.instance);
    heard_at_ = parts_.clock();
}

bool ClusterMember::succeeded(const Result<void>& outcome) {
    if (outcome.ok()) {
        trouble_.clear();
        return true;
    }
    ++counts_.failures;
    std::string text = explanation_of(outcome.error());
    if (troubles_.is_due(text, BootClock::now())) {
        log(LogLevel::kWarning, "cluster: %s", text.c_str());
    }
    trouble_ = std::move(text);
    return false;
}

void ClusterMember::note(const HostChanges& changes) {
    for (const HostChange& change : changes) {
        if (change.to == HostState::kLost) {
            const HostLife* life = find_life(table_, change.host, change.incarnation);
            unwritten_.push_back({{change.host, change.incarnation},
                                  {false, parts_.host, "lease", life->machine, life->boot}});
        }
        // Another host, or a person, says that this incarnation is over: none would hear it any
        // more.
        const bool is_over = change.to == HostState::kFenced || change.to == HostState::kLost;
        const bool is_own = change.host == parts_.host && change.incarnation == incarnation_;
        if (is_own && is_over) end_lease("others call it over");
        if (parts_.note_change) parts_.note_change(change);
    }
}

void ClusterMember::step(Duration wait) {
    const BootTime now = parts_.clock();
    if (must_fence(lease_, now)) end_lease("no answer of the store in time");
    const bool is_member = incarnation_ != 0;
    const bool is_kept = parts_.kept.incarnation != 0;
    if (is_kept && now >= resume_until_) end_kept_place();
    const BootTime limit = is_kept ? std::min(now + kCallsLimit, resume_until_) : now + kCallsLimit;
    parts_.store->limit_calls_until(is_member ? fence_at(lease_) : limit);
    if (is_member) {
        if (must_restore_) {
            restore();
        } else if (now >= next_renewal_) {
            renew_lease();
        }
    } else if (now >= next_try_) {
        next_try_ = now + kJoinPause;
        try_to_join();
    }
    follow_news(wait);
    // While the store is away none is called lost: only it could say that a host is back.
    if (hears(parts_.clock())) note(elapse(table_, parts_.clock()));
    run_fences();
    write_fences();
}

void ClusterMember::renew_lease() {
    const auto kept = parts_.store->keep();
    const BootTime now = parts_.clock();
    if (kept.ok()) {
        (void)succeeded({});
        ++counts_.renewals;
        FAULT_POINT("cluster.renewed");
        // Too late: must_fence() of the next step finds it.
        if (renew(lease_, kept->ttl, kept->sent, now)) {
            next_renewal_ = kept->sent + renewal_pause(lease_.ttl);
        }
        return;
    }
    (void)succeeded(kept.error());
    next_renewal_ = now + renewal_pause(lease_.ttl) / 4;
    if (kept.error().code != Errc::kNotFound) return;
    // Of a store that lost its data, or of one that called this lease over.
    const auto news = parts_.store->read_all();
    if (!news.ok()) return;
    must_restore_ = must_restore_ || news->data_lost;
    if (!must_restore_) end_lease("the store says that it is over");
    take(*news);
}

void ClusterMember::end_lease(const char* why) {
    if (incarnation_ == 0) return;
    (void)lose(lease_);
    ++counts_.self_fences;
    log(LogLevel::kError,
        "cluster: the lease of %s, incarnation %llu, has ended (%s): sessions on shared memory end",
        parts_.host.c_str(), static_cast<unsigned long long>(incarnation_), why);
    own_past_.push_back(incarnation_);
    ended_ = std::max(ended_, incarnation_);
    incarnation_ = 0;
    ++table_.version;
    must_restore_ = false;
    next_try_ = BootTime{};
    end_sessions();
}

// Sessions of the daemon before are still there, and nothing renews their lease.
void ClusterMember::end_kept_place() {
    log(LogLevel::kError,
        "cluster: %s could not go on with incarnation %llu in time: sessions on shared memory end",
        parts_.host.c_str(), static_cast<unsigned long long>(parts_.kept.incarnation));
    ++counts_.self_fences;
    own_past_.push_back(parts_.kept.incarnation);
    ended_ = std::max(ended_, parts_.kept.incarnation);
    parts_.kept = {};
    end_sessions();
}

// At once, and before the store is asked anything: others may be given this memory next.
void ClusterMember::end_sessions() {
    if (const auto ended = parts_.end_shared_sessions(); !ended.ok()) {
        log(LogLevel::kError, "cluster: %s", describe(ended.error()).c_str());
    }
}

bool ClusterMember::fence_own_past() {
    // Before it is called fenced: the next daemon must not go on with it.
    if (!own_past_.empty()) parts_.keep_place({});
    while (!own_past_.empty()) {
        // Again, and every time: it is what the record says.
        const auto ended = parts_.end_shared_sessions();
        const FenceKey key{parts_.host, own_past_.front()};
        if (!ended.ok() && ended.error().code == Errc::kBusy) {
            // Nothing is proved, and with the next incarnation this host may learn of them. Until
            // they have ended, or it is fenced otherwise, what they can write to is kept.
            log(LogLevel::kWarning, "cluster: incarnation %llu of %s stays lost, not fenced: %s",
                static_cast<unsigned long long>(key.second), parts_.host.c_str(),
                explanation_of(ended.error()).c_str());
            own_past_.erase(own_past_.begin());
            continue;
        }
        if (!succeeded(ended)) return false;
        const FenceRecord record{true, parts_.host, "self", parts_.record.machine,
                                 parts_.record.boot};
        FAULT_POINT("cluster.fencing");
        if (!succeeded(parts_.store->write_fence(key, record))) return false;
        FAULT_POINT("cluster.fenced");
        own_past_.erase(own_past_.begin());
        note(note_fence(table_, key.first, key.second, record, parts_.clock()));
    }
    return true;
}

void ClusterMember::try_to_join() {
    if (parts_.kept.incarnation != 0) {
        // The daemon before, or others, may have fenced it while the store kept its record.
        const auto news = parts_.store->read_all();
        if (!succeeded(news.ok() ? Result<void>{} : news.error())) return;
        take(*news);
        if (is_own_past(parts_.kept.incarnation)) return end_kept_place();
        HostRecord record = parts_.record;
        record.incarnation = parts_.kept.incarnation;
        auto place = parts_.store->resume(parts_.host, record, parts_.kept.lease);
        if (place.ok()) {
            parts_.kept = {};
            take_place(place);
            return;
        }
        if (place.error().code != Errc::kNotFound) {
            (void)succeeded(place.error());
            return;
        }
        own_past_.push_back(parts_.kept.incarnation);
        ended_ = std::max(ended_, parts_.kept.incarnation);
        parts_.kept = {};
    }
    if (!fence_own_past()) return;
    const auto place = parts_.store->join(parts_.host, parts_.record, parts_.ttl);
    if (!place.ok() && place.error().code == Errc::kBusy) look_for_clone();
    take_place(place);
}

void ClusterMember::look_for_clone() {
    const HostLife* newest = newest_life(table_, parts_.host);
    if (newest == nullptr || newest->state != HostState::kUp) return;
    const HostRecord& other = table_.hosts.at(parts_.host).record;
    const Duration ttl =
        other.ttl_ms == 0 ? parts_.ttl : Duration(std::chrono::milliseconds(other.ttl_ms));
    if (!note_refusal(clones_, parts_.record, other, ttl, parts_.clock())) return;
    log(LogLevel::kError,
        "cluster: another boot of this machine id holds the name %s, and lives at the same time: "
        "/etc/machine-id has to be another on each host; a boot of this one proves no end any more",
        parts_.host.c_str());
    parts_.record.machine = 0;
}

bool ClusterMember::is_own_past(Incarnation incarnation) const {
    const HostLife* life = find_life(table_, parts_.host, incarnation);
    return life != nullptr &&
           (life->state == HostState::kLost || life->state == HostState::kFenced);
}

void ClusterMember::take_place(const Result<HostPlace>& place) {
    if (!succeeded(place.ok() ? Result<void>{} : place.error())) {
        refusal_ = trouble_;
        return;
    }
    refusal_.clear();
    // A store that was away may have kept the record for longer than its lease: etcd gives all of
    // them their time again when it is started, or has another leader. What has been called over
    // stays over, and others may have this memory already.
    if (place->incarnation <= ended_ || is_own_past(place->incarnation)) {
        // Nothing is in the way of another one then.
        if (succeeded(parts_.store->leave())) next_try_ = BootTime{};
        return;
    }
    const HostLease lease = take_lease(place->times.ttl, place->times.sent);
    incarnation_ = place->incarnation;
    lease_ = lease;
    next_renewal_ = lease.sent + renewal_pause(lease.ttl);
    ++table_.version;  // which of them is this host itself is seen by sessions, too
    FAULT_POINT("cluster.placed");
    parts_.keep_place({place->incarnation, place->lease});
    parts_.store->limit_calls_until(fence_at(lease_));
    log(LogLevel::kInfo, "cluster: %s is a member, incarnation %llu, lease %s", parts_.host.c_str(),
        static_cast<unsigned long long>(incarnation_),
        fabricshm::format_duration(lease.ttl).c_str());
}

std::pair<FenceKey, FenceRecord> ClusterMember::end_of(const std::string& name,
                                                       const HostLife& life) const {
    const bool is_fenced = life.state == HostState::kFenced;
    return {{name, life.number},
            {is_fenced, is_fenced ? life.by : parts_.host, is_fenced ? life.how : "lease",
             life.machine, life.boot}};
}

// The store has lost its data: what this one knows of hosts that are over.
void ClusterMember::write_ends_again() {
    for (const auto& [name, host] : table_.hosts) {
        for (const HostLife& life : host.lives) {
            if (life.state != HostState::kFenced && life.state != HostState::kLost) continue;
            unwritten_.push_back(end_of(name, life));
        }
    }
}

// No host has lost its lease by that: its record is written again, until it is there.
void ClusterMember::restore() {
    if (!must_restore_) return;
    HostRecord record = parts_.record;
    record.incarnation = incarnation_;
    const auto place = parts_.store->join(parts_.host, record, parts_.ttl);
    if (!succeeded(place.ok() ? Result<void>{} : place.error())) return;
    must_restore_ = false;
    // The former lease counts as long as it lasts: there was no moment without one.
    if (!renew(lease_, place->times.ttl, place->times.sent, parts_.clock())) return;
    next_renewal_ = lease_.sent + renewal_pause(lease_.ttl);
    parts_.keep_place({place->incarnation, place->lease});
}

void ClusterMember::follow_news(Duration wait) {
    const BootTime now = parts_.clock();
    const BootTime due = incarnation_ != 0 ? std::min(next_renewal_, fence_at(lease_)) : next_try_;
    const Duration until_due = std::max<Duration>(due - now, std::chrono::milliseconds(1));
    // What is left of the turn before is not waited with.
    const Duration longest = unwritten_.empty() ? wait : Duration::zero();
    const auto news = parts_.store->news(std::min(longest, until_due));
    is_away_ = is_away_ || !news.ok();
    if (!succeeded(news.ok() ? Result<void>{} : news.error())) return;
    const BootTime heard = parts_.clock();
    if (!hears(heard)) begin_graces_again(table_, heard);
    heard_at_ = heard;
    is_away_ = false;
    take(*news);
}

// News come ten times a second while there is a store, empty ones as well. A step that takes long
// is no outage, unless it is this daemon that stood still for longer than a lease.
bool ClusterMember::hears(BootTime now) const noexcept {
    return now - heard_at_ < (is_away_ ? parts_.ttl / 3 : parts_.ttl);
}

void ClusterMember::take(const StoreNews& news) {
    const BootTime now = parts_.clock();
    for (const auto& [name, record] : news.hosts) {
        if (is_known_to_be_past(name, record)) {
            write_newer_lives(name, record.incarnation);
        } else {
            note(note_record(table_, name, record, now));
        }
    }
    for (const auto& [name, incarnation] : news.deleted) {
        note(note_deletion(table_, name, incarnation, now));
        const bool is_own = name == parts_.host && incarnation == incarnation_;
        if (is_own && !news.data_lost && !must_restore_) end_lease("its record was deleted");
    }
    for (const auto& [key, record] : news.fences) {
        note(note_fence(table_, key.first, key.second, record, now));
    }
    FAULT_POINT("cluster.updated");
    end_when_superseded();
    if (!news.data_lost) return;
    log(LogLevel::kWarning, "cluster: the store has lost its data: writing it again");
    must_restore_ = incarnation_ != 0;
    write_ends_again();
    restore();
}

// A store that was restored from an older snapshot may have given a host that is started then a
// number which this daemon knows from before. It is below what is known, or that of a life which is
// over, or another boot's.
bool ClusterMember::is_known_to_be_past(const std::string& name, const HostRecord& record) const {
    const HostLife* newest = newest_life(table_, name);
    if (newest == nullptr || record.incarnation > newest->number) return false;
    const bool is_over = newest->state == HostState::kLost || newest->state == HostState::kFenced;
    const bool is_other_boot = newest->boot != 0 && record.boot != 0 && newest->boot != record.boot;
    return record.incarnation < newest->number || is_over || is_other_boot;
}

// So that the host itself hears of them, and takes a number above them.
void ClusterMember::write_newer_lives(const std::string& name, Incarnation from) {
    const Host& host = table_.hosts.at(name);
    std::vector<Incarnation> vanished;
    for (const HostLife& life : host.lives) {
        if (life.number < from) continue;
        if (life.state == HostState::kLost || life.state == HostState::kFenced) {
            unwritten_.push_back(end_of(name, life));
        } else {
            vanished.push_back(life.number);  // or its key would still have it
        }
    }
    for (const Incarnation number : vanished) {
        note(note_deletion(table_, name, number, parts_.clock()));
    }
}

// Others know of this host under a larger number than its own: they take that for the host, and
// this one for its past.
void ClusterMember::end_when_superseded() {
    const HostLife* newest = newest_life(table_, parts_.host);
    if (newest == nullptr || incarnation_ == 0 || newest->number <= incarnation_) return;
    ended_ = std::max(ended_, newest->number);
    end_lease("the cluster knows a later incarnation of this host");
}

void ClusterMember::end_needless_command(BootTime now) {
    const FenceKey& key = running_.front();
    if (ends_command_ || !is_needless(table_, key)) return;
    ends_command_ = true;
    const HostLife* life = find_life(table_, key.first, key.second);
    const bool is_fenced = life != nullptr && life->state == HostState::kFenced;
    log(LogLevel::kWarning,
        "audit: fence command for %s, incarnation %llu: is ended, the host is %s",
        key.first.c_str(), static_cast<unsigned long long>(key.second),
        is_fenced ? "fenced otherwise" : "up again");
    parts_.runner->end(now);
}

void ClusterMember::run_fences() {
    const BootTime now = parts_.clock();
    follow(fences_, table_, now);
    if (parts_.runner == nullptr) return;
    if (!running_.empty()) {
        end_needless_command(now);
        const auto status = parts_.runner->poll(now);
        if (!status) return;
        const FenceKey key = running_.front();
        running_.clear();
        ends_command_ = false;
        const bool is_fenced = note_command(fences_, key, *status, now);
        ++(is_fenced ? counts_.commands_done : counts_.commands_failed);
        log(is_fenced ? LogLevel::kWarning : LogLevel::kError,
            "audit: fence command for %s, incarnation %llu: exit status %d", key.first.c_str(),
            static_cast<unsigned long long>(key.second), *status);
        if (!is_fenced) return;
        const HostLife* life = find_life(table_, key.first, key.second);
        const FenceRecord record{true, parts_.host, "command", life != nullptr ? life->machine : 0,
                                 life != nullptr ? life->boot : 0};
        note(note_fence(table_, key.first, key.second, record, now));
        unwritten_.push_back({key, record});
        return;
    }
    // Only a host with a lease: its claim has to go when it does.
    if (standing_of(lease_, now) != LeaseStanding::kHeld || incarnation_ == 0) return;
    const auto key = next_to_run(fences_, table_, now);
    if (!key || key->first == parts_.host) return;
    const auto claimed = parts_.store->claim(*key);
    if (!succeeded(claimed.ok() ? Result<void>{} : claimed.error())) return;
    note_claim(fences_, *key, *claimed, now);
    if (!*claimed) return;
    const auto started = parts_.runner->start(*key);
    if (started.ok()) {
        running_.push_back(*key);
    } else {
        log(LogLevel::kError, "cluster: %s", describe(started.error()).c_str());
        (void)note_command(fences_, *key, 127, now);
    }
}

// So many of a turn, and one at most while the lease is due: of a cluster that lost thousands of
// hosts at once each survivor writes thousands of records.
void ClusterMember::write_fences() {
    for (int written = 0; written < kWritesOfTurn && !unwritten_.empty(); ++written) {
        const bool is_due = incarnation_ != 0 && parts_.clock() >= next_renewal_;
        if (written > 0 && is_due) return;
        const auto& [key, record] = unwritten_.front();
        if (!succeeded(parts_.store->write_fence(key, record))) return;
        unwritten_.pop_front();
    }
}

Result<void> ClusterMember::confirm_fence(const std::string& name, const std::string& by) {
    const auto host = table_.hosts.find(name);
    if (host == table_.hosts.end()) {
        return explain({Errc::kNotFound, 0, "fence host"}, "there is no host %s", name.c_str());
    }
    std::vector<HostLife> open;
    for (const HostLife& life : host->second.lives) {
        const bool is_over = life.state == HostState::kLost || life.state == HostState::kSuspect;
        if (is_over) open.push_back(life);
    }
    if (open.empty()) {
        return explain({Errc::kInvalid, 0, "fence host"},
                       "%s has no incarnation that is lost: it is %s", name.c_str(),
                       name_of(state_of(host->second)));
    }
    for (const HostLife& life : open) {
        const FenceKey key{name, life.number};
        const FenceRecord record{true, by, "operator", life.machine, life.boot};
        FABRIC_TRY_VOID(parts_.store->write_fence(key, record));
        note(note_fence(table_, name, life.number, record, parts_.clock()));
    }
    return {};
}

void ClusterMember::leave(bool fenced) {
    if (incarnation_ == 0) return;
    const BootTime now = parts_.clock();
    parts_.store->limit_calls_until(now + std::chrono::seconds(1));
    if (!fenced) return;  // the next daemon on this host goes on with the place
    const FenceKey key{parts_.host, incarnation_};
    const FenceRecord record{true, parts_.host, "left", parts_.record.machine, parts_.record.boot};
    // In this order: deleted first, it would be suspect for a moment.
    if (!succeeded(parts_.store->write_fence(key, record))) return;
    if (!succeeded(parts_.store->leave())) return;
    parts_.keep_place({});
    incarnation_ = 0;
}

}  // namespace fabricd
