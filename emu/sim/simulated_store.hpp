// One daemon's connection to the simulated etcd: what EtcdStore is to a real one, with the same
// transactions, attempts and timeouts.

#pragma once

#include "emu/sim/simulated_etcd.hpp"

namespace emu {

class SimulatedStore final : public fabricd::ClusterStore {
  public:
    SimulatedStore(ClusterTime& time, SimulatedEtcd& etcd, int host, Seconds ttl);

    // The world's.
    void set_cut(bool is_cut) noexcept { is_cut_ = is_cut; }
    void break_watch();
    /// A request of this daemon is at the store.
    void arrive();
    /// When the request was sent whose answer renewed the lease last: for the oracle.
    Seconds last_renewed() const noexcept { return last_renewed_; }
    /// When such a request arrived there last, answered or not.
    Seconds last_at_store() const noexcept { return last_at_store_; }

    void limit_calls_until(fabricd::BootTime end) noexcept override;
    fabricd::Result<fabricd::HostPlace> join(const std::string& host,
                                             const fabricd::HostRecord& record,
                                             fabricd::Duration ttl) override;
    fabricd::Result<fabricd::HostPlace> resume(const std::string& host,
                                               const fabricd::HostRecord& record,
                                               std::int64_t lease) override;
    fabricd::Result<fabricd::StoreLease> keep() override;
    fabricd::Result<fabricd::StoreNews> news(fabricd::Duration wait) override;
    fabricd::Result<fabricd::StoreNews> read_all() override;
    fabricd::Result<bool> claim(const fabricd::FenceKey& key) override;
    fabricd::Result<void> write_fence(const fabricd::FenceKey& key,
                                      const fabricd::FenceRecord& record) override;
    fabricd::Result<void> leave() override;

  private:
    bool is_reachable() const noexcept { return !is_cut_ && etcd_.is_there(); }
    bool is_ending() noexcept { return time_.daemon(host_).is_ending; }
    /// One call: waits for its answer. False: there was none in time. `effect` may run more than
    /// once: an answer may be lost.
    bool call(const Latency& latency, std::uint64_t& count, std::function<void()> effect);
    /// 0: no answer in time.
    fabricd::Incarnation next_incarnation();
    fabricd::Result<fabricd::StoreLease> renew(std::int64_t lease);
    fabricd::HostPlace placed(fabricd::Incarnation incarnation, Seconds ttl, Seconds sent);
    void note(const StoreEvent& event, fabricd::StoreNews& news);

    ClusterTime& time_;
    SimulatedEtcd& etcd_;
    const int host_;
    const Seconds total_;    // of a call with all its attempts
    const Seconds attempt_;  // of one
    Seconds limit_ = 0;
    Seconds sent_ = 0;  // the attempt that was answered
    bool is_cut_ = false;
    std::function<void()> effect_;  // of the request that is on its way
    bool has_arrived_ = false;

    std::int64_t lease_ = 0;
    fabricd::Incarnation identity_ = 0;
    fabricd::Incarnation floor_ = 0;
    std::uint64_t seen_revision_ = 0;
    std::uint64_t answered_revision_ = 0;  // of the request that arrived last
    fabricd::Incarnation newest_ = 0;
    Seconds last_renewed_ = -1e9;
    Seconds last_at_store_ = -1e9;
    std::vector<fabricd::Incarnation> known_;  // [host]; 0: it has no record
    bool has_watch_ = false;
    std::size_t next_event_ = 0;
    Seconds visible_at_ = -1;  // the next event; -1: not drawn yet
};

}  // namespace emu
