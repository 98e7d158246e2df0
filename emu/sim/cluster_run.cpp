#include "emu/sim/cluster_run.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/log.hpp"

namespace emu {

using fabricd::BootTime;
using fabricd::ClusterMember;
using fabricd::Duration;
using fabricd::FenceKey;
using fabricd::HostChange;
using fabricd::HostState;
using fabricd::Incarnation;
using fabricd::KeptPlace;
using fabricd::Result;

namespace {

// Of the daemon's thread (fabricd/net/cluster.cpp): a round is so long at most, a tenth of it at
// least.
constexpr Seconds kRound = 0.1;
constexpr Seconds kJoining = 5;     // in which hosts that are started together have joined
constexpr Seconds kStarting = 1;    // in which they are started
constexpr Seconds kKilling = 5e-3;  // until the processes of sessions are gone
constexpr Seconds kLongWait = 10;

constexpr const char* kFailureNames[kFailureKinds] = {"death",  "cut",  "pause", "restart",
                                                      "leader", "down", "data",  "restore"};

class QuietLog {
  public:
    QuietLog() : before_(fabricshm::log_level()) {
        // Thousands of daemons would write what one writes.
        fabricshm::set_log_level(fabricshm::LogLevel::kOff);
    }
    ~QuietLog() { fabricshm::set_log_level(before_); }

  private:
    const fabricshm::LogLevel before_;
};

StoreCounts difference(const StoreCounts& after, const StoreCounts& before) {
    return {after.keeps - before.keeps, after.reads - before.reads, after.writes - before.writes,
            after.events - before.events};
}

class ClusterRun;

/// `cluster.fence_command` of one daemon.
class SimulatedFence final : public fabricd::FenceRunner {
  public:
    explicit SimulatedFence(ClusterRun& run) : run_(run) {}
    Result<void> start(const FenceKey& key) override;
    std::optional<int> poll(BootTime now) override;
    void end(BootTime now) override;
    bool is_running() const noexcept { return is_running_; }
    Seconds ends_at() const noexcept { return ends_at_; }

  private:
    ClusterRun& run_;
    bool is_running_ = false;
    int status_ = 0;
    Seconds ends_at_ = 0;
};

struct Machine {
    bool has_power = false;
    bool is_cut = false;
    std::uint64_t boot = 0;
    KeptPlace place;  // in its state.dir
    std::unique_ptr<SimulatedStore> store;
    std::unique_ptr<SimulatedFence> fence;
    std::unique_ptr<ClusterMember> member;
};

class ClusterRun {
  public:
    explicit ClusterRun(const ClusterScenario& scenario);
    ~ClusterRun();
    ClusterResult run();

  private:
    friend class SimulatedFence;

    Machine& machine(int host) { return machines_[static_cast<std::size_t>(host)]; }
    int hosts() const noexcept { return scenario_.hosts; }
    bool is_ending(int host) { return time_.daemon(host).is_ending; }
    std::uint64_t random_number() noexcept {
        return static_cast<std::uint64_t>(time_.random() * 0x1p62) | 1;
    }

    void plan_failures();
    void run_until(Seconds end);
    void handle(const Event& event);
    void begin_failure(const ClusterFailure& failure);
    void end_failure(const ClusterFailure& failure);
    void power_off(int host);
    void power_on(int host);
    void start_daemon(int host);
    void end_daemon(int host);
    void break_watches(int member);

    void serve(int host);
    Duration wait_of(int host);
    void sleep_daemon(int host, Seconds until);
    void keep_place(int host, const KeptPlace& place);
    void note_renewal(int host);
    void end_sessions(int host);
    void note_change(int host, const HostChange& change);

    void check_living(int observer);
    void check_end();
    Seconds bound_of(const HostLoss& loss) const;

    const ClusterScenario scenario_;
    ClusterTime time_;
    SimulatedEtcd etcd_;
    ClusterOracle oracle_;
    std::vector<Machine> machines_;
    std::vector<std::pair<Seconds, Seconds>> outages_;  // of etcd
    ClusterResult result_;
};

Result<void> SimulatedFence::start(const FenceKey& key) {
    const ClusterScenario& scenario = run_.scenario_;
    const int host = number_of_name(key.first);
    const bool fails = run_.time_.random() < scenario.fence_fails;
    status_ = fails ? 1 : 0;
    is_running_ = true;
    ends_at_ = run_.time_.now() + scenario.fence_takes;
    ++run_.result_.commands;
    // One that fails may have done it nevertheless.
    if (!fails || run_.time_.random() < 0.5) {
        run_.time_.schedule(run_.time_.now() + scenario.fence_takes / 2, kFencePower, host);
    }
    return {};
}

std::optional<int> SimulatedFence::poll(BootTime) {
    if (!is_running_ || run_.time_.now() < ends_at_) return std::nullopt;
    is_running_ = false;
    return status_;
}

// Too late for what it has begun: the power may go nevertheless.
void SimulatedFence::end(BootTime) {
    status_ = 143;
    ends_at_ = run_.time_.now();
}

ClusterRun::ClusterRun(const ClusterScenario& scenario)
    : scenario_(scenario),
      time_(scenario.hosts, scenario.seed),
      etcd_(time_, scenario.etcd, scenario.hosts),
      oracle_(scenario.hosts, scenario.ttl),
      machines_(static_cast<std::size_t>(scenario.hosts)) {}

ClusterRun::~ClusterRun() {
    for (int host = 0; host < hosts(); ++host) end_daemon(host);
}

// Each host that something happens to is another one, as long as half of them are left: what those
// see is what all have to see.
void ClusterRun::plan_failures() {
    std::vector<int> victims;
    for (int host = 0; host < hosts(); ++host) victims.push_back(host);
    for (std::size_t i = victims.size() - 1; i > 0; --i) {
        std::swap(victims[i], victims[static_cast<std::size_t>(time_.random() * (1.0 * i + 1))]);
    }
    victims.resize(static_cast<std::size_t>(std::max(1, hosts() / 2)));
    std::size_t next = 0;
    for (int i = 0; i < scenario_.failures; ++i) {
        ClusterFailure failure;
        failure.kind = scenario_.kinds[static_cast<std::size_t>(i) % scenario_.kinds.size()];
        failure.at = scenario_.calm + kJoining + time_.random() * scenario_.length;
        const double part = time_.random();
        switch (failure.kind) {
            case FailureKind::kDeath:
                break;
            case FailureKind::kCut:
            case FailureKind::kPause:
                failure.length = scenario_.ttl * (0.1 + 2.9 * part);
                break;
            case FailureKind::kRestart:
                failure.length = 1 + 3 * part;
                break;
            case FailureKind::kLeader:
                failure.length = scenario_.etcd.election * (0.75 + 0.5 * part);
                break;
            case FailureKind::kDown:
                failure.length = 10;
                break;
            case FailureKind::kData:
                failure.length = 1;
                break;
            case FailureKind::kRestore:
                failure.length = 1;
                time_.schedule(kJoining + part * (failure.at - kJoining), kSnapshot, i);
                break;
        }
        if (failure.kind < FailureKind::kLeader) failure.host = victims[next++ % victims.size()];
        if (failure.host >= 0) oracle_.touch(failure.host);
        time_.schedule(failure.at, kFailure, i);
        result_.failures.push_back(failure);
    }
}

ClusterResult ClusterRun::run() {
    const QuietLog quiet;
    for (int host = 0; host < hosts(); ++host) {
        time_.schedule(time_.random() * kStarting, kStartHost, host);
    }
    plan_failures();
    run_until(kJoining);
    result_.joining = etcd_.counts();
    const Seconds calm_end = kJoining + scenario_.calm;
    run_until(calm_end);
    const StoreCounts at_calm_end = etcd_.counts();
    result_.idle = difference(at_calm_end, result_.joining);
    result_.idle_s = scenario_.calm;
    // Until the last failure is over and everything that follows from it, attempts of fence
    // commands that fail included.
    const Seconds settle = std::max(3 * scenario_.ttl, 10.0) + 3 * scenario_.ttl +
                           std::max(scenario_.reboot, 0.0) + 30;
    const Seconds end = calm_end + scenario_.length + settle;
    run_until(end);
    result_.failing = difference(etcd_.counts(), at_calm_end);
    result_.failing_s = end - calm_end;
    check_end();
    for (const Machine& its : machines_) {
        if (its.member) result_.self_fences += its.member->counts().self_fences;
    }
    result_.losses = oracle_.losses();
    result_.observers = oracle_.observers();
    result_.fault_count = oracle_.fault_count();
    result_.faults = oracle_.faults();
    result_.simulated_s = end;
    result_.events = time_.events();
    return std::move(result_);
}

void ClusterRun::run_until(Seconds end) {
    while (time_.next_at() <= end) handle(time_.next());
}

void ClusterRun::handle(const Event& event) {
    switch (static_cast<ClusterEvent>(event.kind)) {
        case kWakeDaemon:
            return time_.wake(event);
        case kRequestArrives:
            if (machine(event.who).store) machine(event.who).store->arrive();
            return;
        case kLeaseIsDue:
            return etcd_.check_lease(event.who);
        case kStoreIsBack:
            return etcd_.come_back();
        case kFailure:
            return begin_failure(result_.failures[static_cast<std::size_t>(event.who)]);
        case kFailureEnd:
            return end_failure(result_.failures[static_cast<std::size_t>(event.who)]);
        case kStartHost:
            return power_on(event.who);
        case kSnapshot:
            return etcd_.save(event.who);
        case kFencePower:
            if (machine(event.who).has_power && !oracle_.is_touched(event.who)) {
                oracle_.fault("a fence command ended host " + std::to_string(event.who) +
                              ", to which nothing had happened");
            }
            if (machine(event.who).member && machine(event.who).member->incarnation() != 0) {
                ++result_.ended_again;
            }
            return power_off(event.who);
    }
}

void ClusterRun::begin_failure(const ClusterFailure& failure) {
    const int number = static_cast<int>(&failure - result_.failures.data());
    const Seconds end = time_.now() + failure.length;
    if (failure.host < 0) {
        outages_.emplace_back(time_.now(), end);
        if (failure.kind == FailureKind::kData) etcd_.lose_data();
        if (failure.kind == FailureKind::kRestore) etcd_.restore(number);
        etcd_.go_away(end);
        const int members = scenario_.etcd.members;
        const bool one = failure.kind == FailureKind::kLeader && members > 1;
        break_watches(one ? static_cast<int>(time_.random() * members) : -1);
        return;
    }
    Machine& its = machine(failure.host);
    if (!its.has_power) return;
    const Incarnation incarnation = its.member ? its.member->incarnation() : 0;
    if (its.store) {
        oracle_.failed(failure.host, incarnation, failure.kind == FailureKind::kDeath,
                       its.store->last_at_store(), time_.now());
    }
    if (failure.kind == FailureKind::kDeath) return power_off(failure.host);
    if (failure.kind == FailureKind::kCut) {
        its.is_cut = true;
        if (its.store) its.store->set_cut(true);
    } else {
        oracle_.set_running(failure.host, false);
        if (failure.kind == FailureKind::kPause) time_.pause(failure.host);
        if (failure.kind == FailureKind::kRestart) end_daemon(failure.host);
    }
    time_.schedule(end, kFailureEnd, number);
}

void ClusterRun::end_failure(const ClusterFailure& failure) {
    Machine& its = machine(failure.host);
    if (failure.kind == FailureKind::kCut) {
        its.is_cut = false;
        if (its.store) its.store->set_cut(false);
        time_.hurry(failure.host, time_.now());
    }
    if (failure.kind == FailureKind::kPause) time_.go_on(failure.host);
    if (failure.kind == FailureKind::kRestart && its.has_power && !its.member) {
        start_daemon(failure.host);
    }
}

void ClusterRun::break_watches(int member) {
    for (int host = 0; host < hosts(); ++host) {
        const bool is_its = member < 0 || host % scenario_.etcd.members == member;
        if (is_its && machine(host).store) machine(host).store->break_watch();
    }
}

void ClusterRun::power_off(int host) {
    Machine& its = machine(host);
    if (!its.has_power) return;
    its.has_power = false;
    oracle_.set_power(host, false);
    oracle_.set_running(host, false);
    end_daemon(host);
    its.place = {};  // of a boot that is over
    if (scenario_.reboot >= 0) time_.schedule(time_.now() + scenario_.reboot, kStartHost, host);
}

void ClusterRun::power_on(int host) {
    Machine& its = machine(host);
    if (its.has_power) return;
    its.has_power = true;
    its.boot = random_number();
    oracle_.set_power(host, true);
    start_daemon(host);
}

void ClusterRun::end_daemon(int host) {
    Machine& its = machine(host);
    time_.end(host);
    if (its.member) result_.self_fences += its.member->counts().self_fences;
    its.member.reset();
    its.store.reset();
    its.fence.reset();
}

void ClusterRun::start_daemon(int host) {
    Machine& its = machine(host);
    its.store = std::make_unique<SimulatedStore>(time_, etcd_, host, scenario_.ttl);
    its.store->set_cut(its.is_cut);
    if (scenario_.has_fence_command) its.fence = std::make_unique<SimulatedFence>(*this);
    fabricd::MemberParts parts;
    parts.host = simulated_name(host);
    parts.record = {.machine = static_cast<std::uint64_t>(host) + 1,
                    .boot = its.boot,
                    .instance = random_number(),
                    .pool = {},
                    .address = {}};
    parts.ttl = std::chrono::nanoseconds(std::llround(scenario_.ttl * 1e9));
    parts.store = its.store.get();
    parts.runner = its.fence.get();
    parts.kept = its.place;
    parts.end_shared_sessions = [this, host]() -> Result<void> {
        end_sessions(host);
        return {};
    };
    parts.keep_place = [this, host](const KeptPlace& place) { keep_place(host, place); };
    parts.note_change = [this, host](const HostChange& change) { note_change(host, change); };
    parts.clock = [this] { return time_.boot_now(); };
    its.member = std::make_unique<ClusterMember>(std::move(parts));
    time_.start(host, [this, host] { serve(host); });
}

void ClusterRun::serve(int host) {
    Machine& its = machine(host);
    while (!is_ending(host)) {
        const Seconds begin = time_.now();
        its.member->step(wait_of(host));
        if (is_ending(host)) return;
        oracle_.set_running(host, true);
        note_renewal(host);
        sleep_daemon(host, begin + (its.member->trouble().empty() ? kRound / 10 : kRound));
    }
}

// Rounds in which nothing would happen are left out: news wake it, and what falls due is found at
// the end of the round in which it does.
Duration ClusterRun::wait_of(int host) {
    Machine& its = machine(host);
    const BootTime now = time_.boot_now();
    const auto round = std::chrono::nanoseconds(std::llround(kRound * 1e9));
    if (!its.member->trouble().empty()) return round;
    BootTime due = its.member->table().first_loss;
    for (const auto& [key, job] : its.member->fences().jobs) {
        if (job.next_attempt > now) due = std::min(due, job.next_attempt);
    }
    if (its.fence && its.fence->is_running()) {
        due = std::min(due, ClusterTime::boot_time(its.fence->ends_at()));
    }
    const auto longest = std::chrono::nanoseconds(std::llround(kLongWait * 1e9));
    if (due - now >= longest) return longest;
    const auto rest = std::chrono::nanoseconds(std::llround(kRound * time_.random() * 1e9));
    return std::max<Duration>(due - now, Duration::zero()) + rest;
}

void ClusterRun::sleep_daemon(int host, Seconds until) {
    while (time_.now() < until && !is_ending(host)) time_.sleep(host, until);
}

void ClusterRun::keep_place(int host, const KeptPlace& place) {
    if (is_ending(host)) return;
    machine(host).place = place;
    // Ranks begin at once.
    if (place.incarnation != 0) oracle_.started_sessions(host, place.incarnation, time_.now());
}

void ClusterRun::note_renewal(int host) {
    const Machine& its = machine(host);
    if (!its.member || its.member->incarnation() == 0) return;
    oracle_.renewed(host, its.member->incarnation(), its.store->last_renewed());
}

void ClusterRun::end_sessions(int host) {
    sleep_daemon(host, time_.now() + kKilling);
    if (!is_ending(host)) oracle_.ended_sessions(host);
}

void ClusterRun::note_change(int host, const HostChange& change) {
    if (is_ending(host)) return;
    const ClusterOracle::Life life{number_of_name(change.host), change.incarnation};
    const Seconds now = time_.now();
    if (change.to == HostState::kSuspect) oracle_.suspects(host, life, now);
    if (change.to == HostState::kLost) {
        note_renewal(life.first);
        oracle_.lost(host, life, now);
    }
    if (change.to == HostState::kFenced) {
        oracle_.fenced(host, life, change.from == HostState::kLost, now);
    }
    const bool may_grant = fabricd::may_grant_bytes_of(machine(host).member->table(), change.host,
                                                       change.incarnation) ||
                           (scenario_.grants_when_lost && change.to == HostState::kLost);
    if (may_grant) oracle_.granted(life, now);
}

// Deleted by the store after its lease, with what the store's outages add; lost a lease and a
// second later. docs/hosts.md.
Seconds ClusterRun::bound_of(const HostLoss& loss) const {
    Seconds leased = loss.renewed;
    for (int pass = 0; pass < 2; ++pass) {
        for (const auto& [from, to] : outages_) {
            if (from <= leased + scenario_.ttl + etcd_.figures().expiry_scan && to > leased) {
                leased = to;
            }
        }
    }
    Seconds bound = leased + 2 * scenario_.ttl + 1 + etcd_.figures().expiry_scan;
    // News come when there is a store again; until a daemon has found that out, and read. The grace
    // of suspects begins once more then.
    for (const auto& [from, to] : outages_) {
        if (from > bound || to + scenario_.ttl <= loss.at) continue;
        bound = std::max(bound + scenario_.ttl, to + 2 * scenario_.ttl + 1);
    }
    return bound + 2 * kRound + 10 * etcd_.figures().watch.p99;
}

// Whatever the store forgot: a host that lives is up for all others, under the number that it has.
void ClusterRun::check_living(int observer) {
    const fabricd::HostTable& table = machine(observer).member->table();
    for (int host = 0; host < hosts(); ++host) {
        const Machine& its = machine(host);
        if (!its.has_power || !its.member || its.member->incarnation() == 0) continue;
        const fabricd::HostLife* newest = fabricd::newest_life(table, simulated_name(host));
        if (newest != nullptr && newest->number == its.member->incarnation() &&
            newest->state == HostState::kUp) {
            continue;
        }
        oracle_.fault("host " + std::to_string(host) + " lives as incarnation " +
                      std::to_string(its.member->incarnation()) + ", and for host " +
                      std::to_string(observer) + " it is " +
                      (newest == nullptr ? "not there"
                                         : std::to_string(newest->number) + " and " +
                                               fabricd::name_of(newest->state)));
    }
}

void ClusterRun::check_end() {
    oracle_.check_losses([this](const HostLoss& loss) { return bound_of(loss); });
    using Seen = std::vector<std::tuple<std::string, Incarnation, HostState>>;
    const auto seen_of = [](const ClusterMember& member) {
        Seen seen;
        for (const auto& [name, host] : member.table().hosts) {
            for (const auto& life : host.lives) {
                const bool is_newest = &life == &host.lives.back();
                // Those that are fenced are kept for a while only, and not by a daemon that was
                // started later.
                if (is_newest || life.state != HostState::kFenced) {
                    seen.emplace_back(name, life.number, life.state);
                }
            }
        }
        return seen;
    };
    int first = -1;
    Seen expected;
    for (int host = 0; host < hosts(); ++host) {
        const Machine& its = machine(host);
        if (!its.has_power || !its.member) continue;
        if (its.member->incarnation() == 0) {
            oracle_.fault("host " + std::to_string(host) +
                          " is no member at the end: " + its.member->trouble());
        }
        check_living(host);
        Seen seen = seen_of(*its.member);
        if (first < 0) {
            first = host;
            expected = std::move(seen);
        } else if (seen != expected) {
            const auto [a, b] = std::ranges::mismatch(seen, expected);
            const auto text = [](const auto& at, const Seen& all) {
                if (at == all.end()) return std::string("nothing");
                return std::get<0>(*at) + " " + std::to_string(std::get<1>(*at)) + " " +
                       fabricd::name_of(std::get<2>(*at));
            };
            oracle_.fault("hosts " + std::to_string(host) + " and " + std::to_string(first) +
                          " disagree at the end: " + text(a, seen) + ", " + text(b, expected));
        }
    }
}

}  // namespace

const char* name_of_failure(int kind) noexcept {
    return kind >= 0 && kind < kFailureKinds ? kFailureNames[kind] : nullptr;
}

ClusterResult run_cluster(const ClusterScenario& scenario) {
    FABRIC_CHECK(scenario.hosts >= 1 && (scenario.failures == 0 || !scenario.kinds.empty()));
    return ClusterRun(scenario).run();
}

}  // namespace emu
