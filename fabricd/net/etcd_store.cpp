#include "fabricd/net/etcd_store.hpp"

#include <algorithm>
#include <charconv>
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

Compare has_lease(const std::string& key, std::int64_t lease) {
    Compare compare;
    compare.set_result(Compare::EQUAL);
    compare.set_target(Compare::LEASE);
    compare.set_key(key);
    compare.set_lease(lease);
    return compare;
}

Compare has_value(const std::string& key, const std::string& value) {
    Compare compare;
    compare.set_result(Compare::EQUAL);
    compare.set_target(Compare::VALUE);
    compare.set_key(key);
    compare.set_value(value);
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

const KeyValue* read_of(const TxnResponse& response) {
    if (response.succeeded() || response.responses_size() != 1) return nullptr;
    const auto& range = response.responses(0).response_range();
    return range.kvs_size() == 1 ? &range.kvs(0) : nullptr;
}

bool read_number(std::string_view text, std::uint64_t& number) {
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, number);
    return error == std::errc{} && at == end && !text.empty();
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
    return read_number(text.substr(slash + 1), key.second);
}

std::string fence_name(const char* kind, const FenceKey& key) {
    return std::string(kind) + "/" + key.first + "/" + std::to_string(key.second);
}

// By the instance, which is random and of one start of a daemon. A daemon that asks for a new
// incarnation may find the one that it resumed, with its number in the record.
std::optional<HostRecord> own_record(const KeyValue& stored, const HostRecord& wanted) {
    auto host = decode_host(stored.value());
    const bool is_own = host && host->instance == wanted.instance &&
                        (wanted.incarnation == 0 || host->incarnation == wanted.incarnation);
    return is_own ? host : std::nullopt;
}

}  // namespace

Result<std::unique_ptr<EtcdStore>> EtcdStore::make(const EtcdOptions& options,
                                                   const std::string& cluster) {
    FABRIC_TRY(auto client, EtcdClient::make(options));
    return std::unique_ptr<EtcdStore>(new EtcdStore(std::move(client), cluster));
}

EtcdStore::EtcdStore(std::unique_ptr<EtcdClient> client, const std::string& cluster)
    : client_(std::move(client)), prefix_("/fabricd/" + cluster + "/v1/") {}

Incarnation EtcdStore::incarnation_of(const KeyValue& record, const HostRecord& host) const {
    if (host.incarnation != 0) return host.incarnation;
    return base_ + static_cast<std::uint64_t>(record.create_revision());
}

Result<void> EtcdStore::ensure_base() {
    const std::string key = prefix_ + "base";
    const Incarnation wanted = std::max(newest_ + (1u << kBaseShift), unix_seconds() << kBaseShift);
    TxnRequest request;
    *request.add_compare() = is_absent(key);
    add_put(request, key, std::to_string(wanted), 0);
    add_read(request, key);
    FABRIC_TRY(const auto answer, client_->transact(request));
    std::uint64_t base = wanted;
    if (!answer.message.succeeded()) {
        const KeyValue* stored = read_of(answer.message);
        if (stored == nullptr || !read_number(stored->value(), base)) {
            return explain({Errc::kCorrupt, 0, "join cluster"}, "%s in etcd is no number",
                           key.c_str());
        }
    }
    base_ = base;
    return {};
}

Result<HostPlace> EtcdStore::join(const std::string& host, const HostRecord& record, Duration ttl) {
    FABRIC_TRY_VOID(ensure_base());
    LeaseGrantRequest wanted;
    // Whole seconds, rounded up: no lease may be shorter than this host takes it for.
    wanted.set_ttl((ttl + std::chrono::milliseconds(999)) / std::chrono::seconds(1));
    FABRIC_TRY(const auto granted, client_->grant(wanted));
    const std::int64_t lease = granted.message.id();
    const std::string key = prefix_ + "hosts/" + host;
    TxnRequest request;
    *request.add_compare() = is_absent(key);
    add_put(request, key, encode(record), lease);
    add_read(request, key);
    const auto answer = client_->transact(request);
    Incarnation incarnation = 0;
    if (answer.ok() && answer->message.succeeded()) {
        incarnation = record.incarnation != 0
                          ? record.incarnation
                          : base_ + static_cast<std::uint64_t>(answer->message.header().revision());
    } else if (answer.ok()) {
        // Written by the try before, whose answer was lost.
        const KeyValue* stored = read_of(answer->message);
        if (stored != nullptr && stored->lease() == lease) {
            incarnation = incarnation_of(*stored, record);
        } else if (const auto own =
                       stored != nullptr ? own_record(*stored, record) : std::nullopt) {
            HostRecord again = record;
            again.incarnation = incarnation_of(*stored, *own);
            return take_own(host, again, stored->lease(), lease);
        }
    }
    if (incarnation == 0) {
        // Otherwise it ends by itself.
        LeaseRevokeRequest unused;
        unused.set_id(lease);
        if (answer.ok()) (void)client_->revoke(unused);
        if (!answer.ok()) return answer.error();
        return explain({Errc::kBusy, 0, "join cluster"},
                       "a host %s is in the cluster: another machine of that name "
                       "(cluster.host_name), or this one's lease of before",
                       host.c_str());
    }
    lease_ = lease;
    newest_ = std::max(newest_, incarnation);
    return HostPlace{
        incarnation, lease, {std::chrono::seconds(granted.message.ttl()), granted.sent}};
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
    FABRIC_TRY_VOID(ensure_base());
    FABRIC_TRY(const StoreLease times, renew(lease));
    const std::string key = prefix_ + "hosts/" + host;
    TxnRequest request;
    *request.add_compare() = has_lease(key, lease);
    add_put(request, key, encode(record), lease);
    FABRIC_TRY(const auto answer, client_->transact(request));
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
        std::uint64_t base = 0;
        if (read_number(record.value(), base)) base_ = base;
    } else if (name.starts_with("hosts/") && is_host_name(name.substr(6))) {
        auto host = decode_host(record.value());
        if (!host) {
            log(LogLevel::kWarning, "cluster: %s in etcd is no record of a host: ignored",
                record.key().c_str());
            return;
        }
        host->incarnation = incarnation_of(record, *host);
        newest_ = std::max(newest_, host->incarnation);
        known_[name.substr(6)] = {host->incarnation, true};
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
    const Incarnation base_before = base_;
    // By its name it comes before the hosts, whose incarnations are counted from it.
    base_ = 0;
    for (auto& [name, known] : known_) known.is_seen = false;
    for (const KeyValue& record : answer.message.kvs()) note(record, news);
    news.data_lost = base_before != 0 && base_ != base_before;
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
    FABRIC_TRY(const auto answer, client_->transact(request));
    const KeyValue* stored = read_of(answer.message);
    return answer.message.succeeded() || (stored != nullptr && stored->lease() == lease_);
}

Result<void> EtcdStore::write_fence(const FenceKey& key, const FenceRecord& record) {
    const std::string name = prefix_ + fence_name("fence", key);
    TxnRequest request;
    // What is fenced stays fenced; a loss is written once.
    if (!record.is_fenced) *request.add_compare() = is_absent(name);
    add_put(request, name, encode(record), 0);
    const auto answer = client_->transact(request);
    return answer.ok() ? Result<void>{} : answer.error();
}

Result<bool> EtcdStore::settle(const Survivors& survivors) {
    constexpr int kAttempts = 8;
    const std::string key = prefix_ + "survivors/" + name_of_group(survivors);
    const std::string value = encode(survivors.ranks);
    LeaseGrantRequest wanted;
    wanted.set_ttl(kSettledFor / std::chrono::seconds(1));
    FABRIC_TRY(const auto granted, client_->grant(wanted));
    TxnRequest request;
    *request.add_compare() = is_absent(key);
    add_put(request, key, value, granted.message.id());
    add_read(request, key);
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        FABRIC_TRY(const auto answer, client_->transact(request));
        if (answer.message.succeeded()) return true;
        const KeyValue* stored = read_of(answer.message);
        const auto before = stored != nullptr ? decode_ranks(stored->value()) : std::nullopt;
        if (stored != nullptr && !before) {
            return explain({Errc::kCorrupt, 0, "settle survivors"}, "%s in etcd is no set of ranks",
                           key.c_str());
        }
        if (before == survivors.ranks) return true;
        if (before && !is_part_of(survivors.ranks, *before)) return false;
        // Sets only get smaller: one that is there again has not been another one meanwhile.
        request.mutable_compare()->Clear();
        *request.add_compare() = before ? has_value(key, stored->value()) : is_absent(key);
    }
    return Error{Errc::kBusy, 0, "settle survivors"};
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
