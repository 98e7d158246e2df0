// An etcd that is not there: keys, leases and watches with the latencies that were measured of a
// real one, and the ways in which it fails. Each daemon has a SimulatedStore to it.

#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emu/sim/cluster_time.hpp"
#include "fabricd/net/cluster_store.hpp"

namespace emu {

/// Of one call, in seconds. Measured with etcd 3.4 on one machine (docs/hosts.md).
struct Latency {
    double median = 0;
    double p99 = 0;
};

struct EtcdFigures {
    Latency grant{1.7e-3, 7.9e-3};
    Latency keep{0.32e-3, 1.4e-3};
    Latency write{1.8e-3, 8.1e-3};
    Latency read{0.7e-3, 2.8e-3};
    Latency watch{2.4e-3, 8.6e-3};
    Seconds expiry_scan = 0.5;  // between looks at leases that are over
    Seconds election = 1.6;     // without a leader, once it is lost
    int members = 3;
};

/// Three members, or one.
EtcdFigures etcd_of_three() noexcept;
EtcdFigures etcd_of_one() noexcept;

/// Since the start, of all hosts. A request is one attempt, answered or not.
struct StoreCounts {
    std::uint64_t keeps = 0;
    std::uint64_t reads = 0;
    std::uint64_t writes = 0;  // grants, transactions, revocations: through its log, on disk
    std::uint64_t events = 0;  // carried to a watch

    std::uint64_t requests() const noexcept { return keeps + reads + writes; }
};

/// A change that watches are sent. kOther: of a key that members don't follow.
struct StoreEvent {
    enum Kind { kRecord, kGone, kFence, kOther };
    Seconds at = 0;
    std::uint64_t revision = 0;
    Kind kind = kOther;
    int host = 0;
    fabricd::HostRecord record = {};
    fabricd::Incarnation incarnation = 0;
    fabricd::FenceRecord fence = {};
};

struct StoredRecord {
    fabricd::HostRecord record;
    std::int64_t lease = 0;
};

/// What hosts that join count from. docs/hosts.md.
struct StoredBase {
    fabricd::Incarnation base = 0;
    fabricd::Incarnation floor = 0;
    std::uint64_t revision = 0;
};

struct StoredLease {
    Seconds ttl = 0;
    Seconds until = 0;
    int host = 0;
    bool is_over = false;
};

class SimulatedEtcd {
  public:
    SimulatedEtcd(ClusterTime& time, const EtcdFigures& figures, int hosts);

    const EtcdFigures& figures() const noexcept { return figures_; }
    bool is_there() const noexcept { return time_.now() >= away_until_; }
    /// No request is answered until then. Leases are given their full length when it is back.
    void go_away(Seconds until);
    void come_back();
    /// With all keys and leases. Together with go_away().
    void lose_data();
    /// A snapshot, and all as it was when that was taken. The second together with go_away().
    void save(int snapshot) { saved_[snapshot] = {state_, leases_}; }
    void restore(int snapshot);
    /// A lease may be over.
    void check_lease(int lease);

    // What arrives at it.
    std::int64_t grant(int host, Seconds ttl);
    /// 0: there is no such lease.
    Seconds keep(std::int64_t lease);
    void revoke(std::int64_t lease);
    StoredBase ensure_base(fabricd::Incarnation wanted);
    /// Nothing is done when it is no longer `seen`.
    void raise_floor(fabricd::Incarnation seen, fabricd::Incarnation wanted);
    /// False: there is a record already, or the floor is no longer `seen`.
    bool create(int host, const fabricd::HostRecord& record, std::int64_t lease,
                fabricd::Incarnation seen);
    bool replace(int host, const fabricd::HostRecord& record, std::int64_t lease);
    const StoredRecord* record_of(int host) const;
    bool claim(const fabricd::FenceKey& key, int host, std::int64_t lease);
    void write_fence(const fabricd::FenceKey& key, int host, const fabricd::FenceRecord& record);

    const std::vector<std::optional<StoredRecord>>& records() const noexcept {
        return state_.records;
    }
    const std::map<fabricd::FenceKey, fabricd::FenceRecord>& fences() const noexcept {
        return state_.fences;
    }
    const StoredBase& base() const noexcept { return state_.base; }
    const std::vector<StoreEvent>& log() const noexcept { return log_; }
    StoreCounts& counts() noexcept { return counts_; }
    /// Waits for the next event; it is woken once.
    void await(int host) { waiting_.push_back(host); }
    Seconds last_outage_end() const noexcept { return away_until_; }

  private:
    /// All but leases, whose numbers are never given out again.
    struct State {
        std::vector<std::optional<StoredRecord>> records;
        std::map<fabricd::FenceKey, fabricd::FenceRecord> fences;
        std::map<fabricd::FenceKey, std::int64_t> claims;  // the lease that each goes with
        StoredBase base;
    };

    void append(StoreEvent event);
    StoredLease* lease_of(std::int64_t lease);
    void schedule_check(std::int64_t lease);
    void end_lease(std::int64_t lease);

    ClusterTime& time_;
    const EtcdFigures figures_;
    std::vector<StoredLease> leases_;  // [lease - 1]
    State state_;
    std::map<int, std::pair<State, std::vector<StoredLease>>> saved_;
    std::vector<StoreEvent> log_;
    std::vector<int> waiting_;
    Seconds away_until_ = 0;
    StoreCounts counts_;
};

/// Names of simulated hosts: "h0007".
std::string simulated_name(int host);
int number_of_name(const std::string& name);

}  // namespace emu
