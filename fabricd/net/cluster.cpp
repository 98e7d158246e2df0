#include "fabricd/net/cluster.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "fabricd/net/etcd_store.hpp"
#include "fabricd/net/place_file.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::explain;
using fabricshm::log;
using fabricshm::LogLevel;

namespace {

constexpr Duration kRound = std::chrono::milliseconds(100);
constexpr Duration kConfirmWait = std::chrono::seconds(10);

std::string log_text(const HostChange& change) {
    std::string text = "cluster: " + change.host + ", incarnation " +
                       std::to_string(change.incarnation) + ": " + name_of(change.to);
    if (!change.how.empty()) text += " (" + change.how + ")";
    return text;
}

EtcdOptions etcd_options(const ClusterConfig& config) {
    EtcdOptions options;
    options.endpoints = words_of(config.etcd);
    options.tls_ca = config.tls_ca;
    options.tls_cert = config.tls_cert;
    options.tls_key = config.tls_key;
    // A third of a lease for one renewal; each member gets a share of it.
    options.total = config.ttl / 3;
    options.attempt = std::clamp<Duration>(config.ttl / 8, std::chrono::milliseconds(250),
                                           std::chrono::seconds(1));
    return options;
}

}  // namespace

struct Cluster::Impl {
    /// What a person said, for the thread; its caller waits.
    struct Confirmation {
        std::string host;
        bool is_done = false;
        Error error{Errc::kOk, 0, ""};
        std::string reason;
    };

    ClusterSetup setup;
    std::string host;
    std::unique_ptr<EtcdStore> store;
    std::optional<FenceCommand> runner;
    std::optional<ClusterMember> member;  // the thread's

    mutable std::mutex mutex;  // of all that follows
    std::condition_variable changed;
    std::shared_ptr<const ClusterView> view = std::make_shared<ClusterView>();
    BootTime lease_end{};
    std::deque<std::shared_ptr<Confirmation>> confirmations;
    SurvivorsDesk survivors;  // locks itself
    bool is_stopping = false;
    bool leaves = false;

    std::thread thread;

    void start_static(const std::vector<std::string>& hosts);
    Result<void> start_member();
    void run();
    void serve_confirmations();
    void settle_next();
    void publish();
};

void Cluster::Impl::start_static(const std::vector<std::string>& hosts) {
    HostTable table;
    table.version = first_version(setup.record.instance);
    const BootTime now = BootClock::now();
    for (const std::string& name : hosts) list_host(table, name, now);
    ClusterView fixed;
    fixed.cluster = setup.config.name;
    fixed.store = "static";
    fixed.host = host;
    fixed.admits = true;
    fixed.version = table.version;
    fixed.hosts = host_views(table, {}, {host, 0}, now);
    view = std::make_shared<ClusterView>(std::move(fixed));
}

Result<void> Cluster::Impl::start_member() {
    FABRIC_TRY(store, EtcdStore::make(etcd_options(setup.config), setup.config.name));
    const PlaceOwner owner{setup.config.name, host, setup.record.boot};
    if (!setup.config.fence_command.empty()) {
        runner.emplace(setup.config.fence_command, setup.config.fence_timeout);
    }
    MemberParts parts;
    parts.host = host;
    parts.record = setup.record;
    parts.ttl = setup.config.ttl;
    parts.store = store.get();
    parts.runner = runner ? &*runner : nullptr;
    parts.kept = read_place(setup.place_path, owner);
    parts.end_shared_sessions = setup.end_shared_sessions;
    parts.keep_place = [path = setup.place_path, owner](const KeptPlace& place) {
        if (const auto kept = write_place(path, owner, place); !kept.ok()) {
            log(LogLevel::kWarning, "cluster: %s: %s", path.c_str(),
                describe(kept.error()).c_str());
        }
    };
    parts.note_change = [](const HostChange& change) {
        log(is_gone(change.to) ? LogLevel::kWarning : LogLevel::kInfo, "%s",
            log_text(change).c_str());
    };
    member.emplace(std::move(parts));
    publish();
    thread = std::thread([this] { run(); });
    return {};
}

void Cluster::Impl::run() {
    while (true) {
        {
            const std::lock_guard lock(mutex);
            if (is_stopping) break;
        }
        const BootTime begin = BootClock::now();
        member->step(kRound);
        serve_confirmations();
        settle_next();
        publish();
        // A store that refuses at once, or has news all the time, must not keep a processor busy.
        std::unique_lock lock(mutex);
        const Duration rest = member->trouble().empty() ? kRound / 10 : kRound;
        const Duration used = BootClock::now() - begin;
        if (used < rest) changed.wait_for(lock, rest - used, [this] { return is_stopping; });
    }
    member->leave(leaves);
}

void Cluster::Impl::serve_confirmations() {
    std::unique_lock lock(mutex);
    while (!confirmations.empty()) {
        const auto confirmation = confirmations.front();
        confirmations.pop_front();
        lock.unlock();
        const auto done = member->confirm_fence(confirmation->host, host);
        lock.lock();
        if (!done.ok()) {
            confirmation->error = done.error();
            confirmation->reason = explanation_of(done.error());
        }
        confirmation->is_done = true;
        changed.notify_all();
    }
}

// One in each round: the lease comes first.
void Cluster::Impl::settle_next() {
    const auto question = survivors.next(BootClock::now());
    if (!question) return;
    const auto settled = store->settle(*question);
    if (settled.ok()) survivors.answer(*question, *settled);
    if (settled.ok() || settled.error().code != Errc::kCorrupt) return;
    log(LogLevel::kWarning, "cluster: %s", describe(settled.error()).c_str());
    survivors.answer(*question, false);
}

void Cluster::Impl::publish() {
    const BootTime now = BootClock::now();
    const LeaseStanding standing = standing_of(member->lease(), now);
    ClusterView fresh;
    fresh.cluster = setup.config.name;
    fresh.store = "etcd";
    fresh.host = host;
    fresh.incarnation = member->incarnation();
    fresh.lease = standing;
    fresh.admits = member->incarnation() != 0 && standing == LeaseStanding::kHeld;
    if (fresh.admits) fresh.admits_until = grants_until(member->lease());
    fresh.trouble = member->trouble();
    fresh.counts = member->counts();
    fresh.version = member->table().version;
    fresh.hosts = host_views(member->table(), member->fences(), {host, fresh.incarnation}, now);
    const std::lock_guard lock(mutex);
    lease_end = fence_at(member->lease());
    view = std::make_shared<ClusterView>(std::move(fresh));
}

Cluster::Cluster(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

Cluster::~Cluster() {
    stop(false);
}

Result<std::unique_ptr<Cluster>> Cluster::start(ClusterSetup setup) {
    if (const std::string bad = check_cluster(setup.config); !bad.empty()) {
        return explain({Errc::kInvalid, 0, "cluster"}, "%s", bad.c_str());
    }
    auto impl = std::make_unique<Impl>();
    impl->host = host_name_of(setup.config);
    impl->setup = std::move(setup);
    const ClusterConfig& config = impl->setup.config;
    if (!config.hosts.empty()) {
        impl->start_static(words_of(config.hosts));
    } else if (!config.etcd.empty()) {
        FABRIC_TRY_VOID(impl->start_member());
    }
    return std::unique_ptr<Cluster>(new Cluster(std::move(impl)));
}

std::shared_ptr<const ClusterView> Cluster::view() const {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->view->lease == LeaseStanding::kNone) return impl_->view;
    // The lease goes on while the thread waits for the store.
    auto now = std::make_shared<ClusterView>(*impl_->view);
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(impl_->lease_end - BootClock::now());
    now->lease_ms = now->incarnation != 0 ? std::max<std::int64_t>(0, left.count()) : 0;
    return now;
}

std::shared_ptr<const ClusterView> Cluster::last_view() const {
    const std::lock_guard lock(impl_->mutex);
    return impl_->view;
}

Verdict Cluster::settle(const Survivors& survivors) {
    if (!impl_->thread.joinable()) return Verdict::kNoStore;
    return impl_->survivors.ask(survivors, BootClock::now());
}

Result<void> Cluster::confirm_fence(const std::string& host) {
    if (!impl_->thread.joinable()) {
        return explain({Errc::kInvalid, 0, "fence host"},
                       impl_->view->cluster.empty()
                           ? "this daemon is in no cluster (cluster.etcd)"
                           : "of a static list no host is called lost, and none has to be fenced");
    }
    const auto confirmation = std::make_shared<Impl::Confirmation>();
    confirmation->host = host;
    std::unique_lock lock(impl_->mutex);
    impl_->confirmations.push_back(confirmation);
    const bool is_done =
        impl_->changed.wait_for(lock, kConfirmWait, [&] { return confirmation->is_done; });
    if (!is_done) return Error{Errc::kTimeout, 0, "fence host"};
    if (confirmation->error.code == Errc::kOk) return {};
    return explain(confirmation->error, "%s", confirmation->reason.c_str());
}

void Cluster::stop(bool is_empty) {
    if (!impl_->thread.joinable()) return;
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->is_stopping = true;
        impl_->leaves = is_empty;
    }
    impl_->changed.notify_all();
    impl_->thread.join();
}

}  // namespace fabricd
