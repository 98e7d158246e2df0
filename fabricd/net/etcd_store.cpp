#include "fabricd/net/etcd_store.hpp"

#include <algorithm>
#include <chrono>
#include <optional>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::explain;
using fabricshm::log;
using fabricshm::LogLevel;
using namespace etcdserverpb;

namespace {

// Above the revisions that a base leaves room for: a second has a million of them.
constexpr int kBaseShift = 20;
// Of what another host may be faster with each time: then its value is looked at.
constexpr int kTries = 8;

// What a group settled: longer than ranks wait behind a cut.
constexpr Duration kSettledFor = std::chrono::hours(24);

std::string after_prefix(std::string prefix) {
    ++prefix.back();  // '/', which is not the last byte
    return prefix;
}

Compare is_absent(const std::string& key) {
    Compare compare;
    compare.set_result(Compare::EQUAL);
    compare.set_target(Compare::CREATE);
    compare.set_key(key);
    compare.set_create_revision(0);
    return compare;
}

Compare is_as_of(const std::string& key, std::int64_t revision) {
    Compare compare;
    compare.set_result(Compare::EQUAL);
    compare.set_target(Compare::MOD);
    compare.set_key(key);
    compare.set_mod_revision(revision);
    return compare;
}

Compare has_lease(const std::string& key, std::int64_t lease) {
    Compare compare;
    compare.set_result(Compare::EQUAL);
    compare.set_target(Compare::LEASE);
    compare.set_key(key);
    compare.set_lease(lease);
    return compare;
}

void add_put(TxnRequest& request, const std::string& key, const std::string& value,
             std::int64_t lease) {
    PutRequest& put = *request.add_success()->mutable_request_put();
    put.set_key(key);
    put.set_value(value);
    put.set_lease(lease);
}

// What stands under the key, in the answer to a transaction that did not succeed.
void add_read(TxnRequest& request, const std::string& key) {
    request.add_failure()->mutable_request_range()->set_key(key);
}

const KeyValue* read_of(const TxnResponse& response, int read = 0) {
    if (response.succeeded() || response.responses_size() <= read) return nullptr;
    const auto& range = response.responses(read).response_range();
    return range.kvs_size() == 1 ? &range.kvs(0) : nullptr;
}

std::uint64_t unix_seconds() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

// "fence/NAME/NUMBER" without its first part.
bool read_fence_key(std::string_view text, FenceKey& key) {
    const std::size_t slash = text.find('/');
    if (slash == std::string_view::npos || !is_host_name(text.substr(0, slash))) return false;
    key.first = text.substr(0, slash);
    return read_incarnation(text.substr(slash + 1), key.second);
}

std::string fence_name(const char* kind, const FenceKey& key) {
    return std::string(kind) + "/" + key.first + "/" + std::to_string(key.second);
}

Error refused(const std::string& key, const std::string& host, const KeyValue& stored) {
    const Error busy{Errc::kBusy, 0, "join cluster"};
    if (stored.lease() == 0) {
        return explain(
            busy,
            "%s in etcd has no lease, and no daemon wrote it: no host can take the name %s "
            "while it is there (etcdctl del %s)",
            key.c_str(), host.c_str(), key.c_str());
    }
    return explain(busy,
                   "a host %s is in the cluster: another machine of that name "
                   "(cluster.host_name), or this one's lease of before",
                   host.c_str());
}

Error no_number(const std::string& key) {
    return explain({Errc::kCorrupt, 0, "join cluster"}, "%s in etcd is no number below 2^62",
                   key.c_str());
}

}  // namespace

Result<std::unique_ptr<EtcdStore>> EtcdStore::make(const EtcdOptions& options,
                                                   const std::string& cluster) {
    FABRIC_TRY(auto client, EtcdClient::make(options));
    return std::unique_ptr<EtcdStore>(new EtcdStore(std::move(client), cluster));
}

EtcdStore::EtcdStore(std::unique_ptr<EtcdClient> client, const std::string& cluster)
    : client_(std::move(client)), prefix_("/fabricd/" + cluster + "/v1/") {}

Result<Answered<TxnResponse>> EtcdStore::transact(const TxnRequest& request) {
    auto answer = client_->transact(request);
    // What this one has written counts as well, before it hears of it.
    if (answer.ok()) {
        seen_revision_ = std::max(seen_revision_, answer->message.header().revision());
    }
    return answer;
}

Incarnation EtcdStore::incarnation_of(const KeyValue& record, const HostRecord& host) const {
    if (host.incarnation != 0) return host.incarnation;
    return base_ + static_cast<std::uint64_t>(record.create_revision());
}

// By the instance, which is random and of one start of a daemon. A daemon that asks for a new
// incarnation may find the one that it resumed. 0: the record is another one's.
Incarnation EtcdStore::own_incarnation(const KeyValue& stored, const HostRecord& wanted) const {
    const auto host = decode_host(stored.value());
    if (!host || host->instance != wanted.instance) return 0;
    const Incarnation own = incarnation_of(stored, *host);
    return wanted.incarnation == 0 || own == wanted.incarnation ? own : 0;
}

Result<void> EtcdStore::ensure_base() {
    const std::string base_key = prefix_ + "base", floor_key = prefix_ + "floor";
    const Incarnation wanted = std::max(newest_ + (1u << kBaseShift), unix_seconds() << kBaseShift);
    TxnRequest request;
    *request.add_compare() = is_absent(base_key);
    add_put(request, base_key, std::to_string(wanted), 0);
    add_read(request, base_key);
    add_read(request, floor_key);
    FABRIC_TRY(const auto answer, transact(request));
    base_ = wanted;
    floor_ = 0;
    floor_changed_ = 0;
    if (!answer.message.succeeded()) {
        const KeyValue* base = read_of(answer.message);
        const KeyValue* floor = read_of(answer.message, 1);
        if (base == nullptr || !read_incarnation(base->value(), base_)) return no_number(base_key);
        if (floor != nullptr) {
            if (!read_incarnation(floor->value(), floor_)) return no_number(floor_key);
            floor_changed_ = floor->mod_revision();
        }
    }
    if (identity_ == 0) identity_ = base_;
    revision_ = answer.message.header().revision();
    return {};
}

// Above all that this daemon has seen, and above the time of day: what daemons know that this one
// has not heard of, since the store has lost it, is below that.
Result<Incarnation> EtcdStore::next_incarnation() {
    const std::string key = prefix_ + "floor";
    for (int tries = 0; tries < kTries; ++tries) {
        FABRIC_TRY_VOID(ensure_base());
        const Incarnation needed = std::max(newest_ + 1, unix_seconds() << kBaseShift);
        const Incarnation next = std::max(base_, floor_) + static_cast<std::uint64_t>(revision_);
        if (next >= needed) return next;
        TxnRequest request;
        *request.add_compare() = is_as_of(key, floor_changed_);
        add_put(request, key, std::to_string(needed), 0);
        FABRIC_TRY_VOID(transact(request));
    }
    return explain({Errc::kBusy, 0, "join cluster"}, "%s in etcd goes on changing", key.c_str());
}

// Of this boot of this machine, from before the store was restored: it is the wanted one's past.
bool EtcdStore::ends_own_past(const KeyValue& stored, const HostRecord& wanted) {
    const auto host = decode_host(stored.value());
    const bool is_own_past = host && stored.lease() != 0 && wanted.boot != 0 &&
                             host->boot == wanted.boot && host->machine == wanted.machine &&
                             incarnation_of(stored, *host) < wanted.incarnation;
    if (!is_own_past) return false;
    LeaseRevokeRequest past;
    past.set_id(stored.lease());
    return client_->revoke(past).ok();
}

Result<HostPlace> EtcdStore::join(const std::string& host, const HostRecord& wanted, Duration ttl) {
    FABRIC_TRY(Incarnation next, next_incarnation());
    LeaseGrantRequest leased;
    // Whole seconds, rounded up: no lease may be shorter than this host takes it for.
    leased.set_ttl((ttl + std::chrono::milliseconds(999)) / std::chrono::seconds(1));
    FABRIC_TRY(const auto granted, client_->grant(leased));
    const std::int64_t lease = granted.message.id();
    const std::string key = prefix_ + "hosts/" + host;
    HostRecord record = wanted;
    Error refusal = explain({Errc::kBusy, 0, "join cluster"}, "%s in etcd goes on changing",
                            (prefix_ + "floor").c_str());
    for (int tries = 0; tries < kTries; ++tries) {
        record.incarnation = wanted.incarnation != 0 ? wanted.incarnation : next;
        TxnRequest request;
        *request.add_compare() = is_absent(key);
        // Raised since: by a host that knows of larger ones.
        if (wanted.incarnation == 0) {
            *request.add_compare() = is_as_of(prefix_ + "floor", floor_changed_);
        }
        add_put(request, key, encode(record), lease);
        add_read(request, key);
        const auto answer = transact(request);
        // The lease ends by itself.
        if (!answer.ok()) return answer.error();
        const KeyValue* stored = read_of(answer->message);
        // Also when it was written by an attempt whose answer was lost.
        if (answer->message.succeeded() || (stored != nullptr && stored->lease() == lease)) {
            lease_ = lease;
            newest_ = std::max(newest_, record.incarnation);
            return HostPlace{record.incarnation,
                             lease,
                             {std::chrono::seconds(granted.message.ttl()), granted.sent}};
        }
        if (stored == nullptr) {
            FABRIC_TRY(next, next_incarnation());
            continue;
        }
        if (const Incarnation own = own_incarnation(*stored, wanted); own != 0) {
            record.incarnation = own;
            return take_own(host, record, stored->lease(), lease);
        }
        if (ends_own_past(*stored, wanted)) continue;
        refusal = refused(key, host, *stored);
        break;
    }
    LeaseRevokeRequest unused;
    unused.set_id(lease);
    (void)client_->revoke(unused);
    return refusal;
}

// Written by a call before, whose answer was lost, or that was not believed any more, under the
// lease of that call.
Result<HostPlace> EtcdStore::take_own(const std::string& host, const HostRecord& record,
                                      std::int64_t lease, std::int64_t unused) {
    LeaseRevokeRequest request;
    request.set_id(unused);
    (void)client_->revoke(request);
    return resume(host, record, lease);
}

Result<HostPlace> EtcdStore::resume(const std::string& host, const HostRecord& record,
                                    std::int64_t lease) {
    FABRIC_TRY(const StoreLease times, renew(lease));
    const std::string key = prefix_ + "hosts/" + host;
    TxnRequest request;
    *request.add_compare() = has_lease(key, lease);
    add_put(request, key, encode(record), lease);
    FABRIC_TRY(const auto answer, transact(request));
    if (!answer.message.succeeded()) return Error{Errc::kNotFound, 0, "resume place in cluster"};
    lease_ = lease;
    newest_ = std::max(newest_, record.incarnation);
    return HostPlace{record.incarnation, lease, times};
}

Result<StoreLease> EtcdStore::renew(std::int64_t lease) {
    LeaseKeepAliveRequest request;
    request.set_id(lease);
    FABRIC_TRY(const auto answer, client_->keep_alive(request));
    if (answer.message.ttl() <= 0) return Error{Errc::kNotFound, 0, "renew a lease of etcd"};
    return StoreLease{std::chrono::seconds(answer.message.ttl()), answer.sent};
}

Result<StoreLease> EtcdStore::keep() {
    return renew(lease_);
}

void EtcdStore::note(const KeyValue& record, StoreNews& news) {
    if (!record.key().starts_with(prefix_)) return;
    const std::string name = record.key().substr(prefix_.size());
    if (name == "base") {
        if (!read_incarnation(record.value(), base_)) base_ = 0;
    } else if (name.starts_with("hosts/") && is_host_name(name.substr(6))) {
        auto host = decode_host(record.value());
        if (!host) {
            log(LogLevel::kWarning, "cluster: %s in etcd is no record of a host: ignored",
                record.key().c_str());
            return;
        }
        host->incarnation = incarnation_of(record, *host);
        newest_ = std::max(newest_, host->incarnation);
        Known& known = known_[name.substr(6)];
        // Of a store that went back to an older state: the one that was there is there no more.
        if (known.incarnation != 0 && known.incarnation != host->incarnation) {
            news.deleted.emplace_back(name.substr(6), known.incarnation);
        }
        known = {host->incarnation, true};
        news.hosts.emplace_back(name.substr(6), *host);
    } else if (name.starts_with("fence/")) {
        FenceKey key;
        const auto fence = decode_fence(record.value());
        if (fence && read_fence_key(std::string_view(name).substr(6), key)) {
            newest_ = std::max(newest_, key.second);
            news.fences.emplace_back(key, *fence);
        }
    }
}

void EtcdStore::note_deleted(const std::string& key, StoreNews& news) {
    const std::string hosts = prefix_ + "hosts/";
    if (!key.starts_with(hosts)) return;
    const auto known = known_.find(key.substr(hosts.size()));
    if (known == known_.end()) return;
    news.deleted.emplace_back(known->first, known->second.incarnation);
    known_.erase(known);
}

Result<StoreNews> EtcdStore::read_all() {
    RangeRequest request;
    request.set_key(prefix_);
    request.set_range_end(after_prefix(prefix_));
    FABRIC_TRY(const auto answer, client_->range(request));
    StoreNews news;
    news.is_whole = true;
    // By its name it comes before the hosts, whose incarnations are counted from it.
    base_ = 0;
    for (auto& [name, known] : known_) known.is_seen = false;
    for (const KeyValue& record : answer.message.kvs()) note(record, news);
    const std::int64_t revision = answer.message.header().revision();
    // The second: an older state of the same data.
    news.data_lost = (identity_ != 0 && base_ != identity_) || revision < seen_revision_;
    identity_ = base_;
    seen_revision_ = revision;
    std::erase_if(known_, [&](const auto& item) {
        if (!item.second.is_seen) news.deleted.emplace_back(item.first, item.second.incarnation);
        return !item.second.is_seen;
    });

    WatchRequest watch;
    WatchCreateRequest& create = *watch.mutable_create_request();
    create.set_key(prefix_);
    create.set_range_end(after_prefix(prefix_));
    create.set_start_revision(answer.message.header().revision() + 1);
    watch_ = client_->watch(watch);
    watch_generation_ = client_->generation();
    return news;
}

Result<StoreNews> EtcdStore::news(Duration wait) {
    // Read again from the start whenever the watch could have missed something: a member that was
    // left may hang, and one that began without data would wait for revisions that are years away.
    if (watch_ == nullptr || watch_generation_ != client_->generation()) {
        watch_.reset();
        return read_all();
    }
    const auto response = watch_->next(wait);
    if (!response.ok() && response.error().code == Errc::kTimeout) return StoreNews{};
    if (!response.ok() || response->canceled()) {
        watch_.reset();
        return StoreNews{};
    }
    StoreNews news;
    seen_revision_ = std::max(seen_revision_, response->header().revision());
    for (const Event& event : response->events()) {
        if (event.type() == Event::PUT) {
            note(event.kv(), news);
        } else {
            note_deleted(event.kv().key(), news);
        }
    }
    return news;
}

Result<bool> EtcdStore::claim(const FenceKey& key) {
    const std::string name = prefix_ + fence_name("claim", key);
    TxnRequest request;
    *request.add_compare() = is_absent(name);
    add_put(request, name, "", lease_);
    add_read(request, name);
    FABRIC_TRY(const auto answer, transact(request));
    const KeyValue* stored = read_of(answer.message);
    return answer.message.succeeded() || (stored != nullptr && stored->lease() == lease_);
}

Result<void> EtcdStore::write_fence(const FenceKey& key, const FenceRecord& record) {
    const std::string name = prefix_ + fence_name("fence", key);
    TxnRequest request;
    // What is fenced stays fenced; a loss is written once.
    if (!record.is_fenced) *request.add_compare() = is_absent(name);
    add_put(request, name, encode(record), 0);
    const auto answer = transact(request);
    return answer.ok() ? Result<void>{} : answer.error();
}

Result<bool> EtcdStore::settle(const Survivors& survivors) {
    const std::string key = prefix_ + "survivors/" + name_of_group(survivors);
    std::int64_t lease = 0;
    for (int tries = 0; tries < kTries; ++tries) {
        RangeRequest question;
        question.set_key(key);
        FABRIC_TRY(const auto found, client_->range(question));
        const KeyValue* stored = found.message.kvs_size() == 1 ? &found.message.kvs(0) : nullptr;
        const auto before = stored != nullptr ? decode_ranks(stored->value()) : std::nullopt;
        if (stored != nullptr && !before) {
            return explain({Errc::kCorrupt, 0, "settle survivors"}, "%s in etcd is no set of ranks",
                           key.c_str());
        }
        if (before == survivors.ranks) return true;
        if (before && !is_part_of(survivors.ranks, *before)) return false;
        if (lease == 0) {
            LeaseGrantRequest wanted;
            wanted.set_ttl(kSettledFor / std::chrono::seconds(1));
            FABRIC_TRY(const auto granted, client_->grant(wanted));
            lease = granted.message.id();
        }
        TxnRequest request;
        *request.add_compare() = is_as_of(key, stored != nullptr ? stored->mod_revision() : 0);
        add_put(request, key, encode(survivors.ranks), lease);
        FABRIC_TRY(const auto answer, transact(request));
        if (answer.message.succeeded()) return true;
    }
    return explain({Errc::kBusy, 0, "settle survivors"}, "%s in etcd goes on changing",
                   key.c_str());
}

Result<void> EtcdStore::leave() {
    if (lease_ == 0) return {};
    LeaseRevokeRequest request;
    request.set_id(lease_);
    const auto answer = client_->revoke(request);
    // Not there: the try before, whose answer was lost, or its own end.
    if (!answer.ok() && answer.error().code != Errc::kNotFound) return answer.error();
    lease_ = 0;
    return {};
}

}  // namespace fabricd
