// What is true of a simulated cluster, and what its daemons may say of it: knows the machines and
// the sessions on them, and none of the rules of leases.

#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "emu/sim/event_queue.hpp"
#include "fabricd/net/host_record.hpp"

namespace emu {

/// One life of a host that something happened to, as the hosts to which nothing happened see it.
/// Times of the world; -1: never.
struct HostLoss {
    int host = 0;
    fabricd::Incarnation incarnation = 0;
    bool is_death = false;  // it never goes on by itself
    Seconds at = 0;
    Seconds began = 0;    // when its sessions did
    Seconds renewed = 0;  // when its lease was, last
    int suspecting = 0;   // observers
    Seconds last_suspect = -1;
    int losing = 0;
    Seconds last_lost = -1;
    int fencing = 0;
    Seconds last_fenced = -1;
};

class ClusterOracle {
  public:
    using Life = std::pair<int, fabricd::Incarnation>;

    ClusterOracle(int hosts, Seconds ttl);

    // What happens to machines and sessions.
    void started_sessions(int host, fabricd::Incarnation incarnation, Seconds now);
    void ended_sessions(int host);
    void set_power(int host, bool is_on);
    /// Its daemon runs, and its machine.
    void set_running(int host, bool runs) { hosts_[index(host)].is_running = runs; }
    void renewed(int host, fabricd::Incarnation incarnation, Seconds sent);
    /// `renewed`: when its lease was, at the store.
    void failed(int host, fabricd::Incarnation incarnation, bool is_death, Seconds renewed,
                Seconds now);
    /// Nothing has ever happened to it: what it sees, all have to see.
    void touch(int host) { hosts_[index(host)].is_touched = true; }
    bool is_touched(int host) const { return hosts_[index(host)].is_touched; }

    // What a daemon says.
    void suspects(int observer, const Life& life, Seconds now);
    void lost(int observer, const Life& life, Seconds now);
    /// `was_lost`: before; else it is both from now on.
    void fenced(int observer, const Life& life, bool was_lost, Seconds now);
    /// It would grant the memory of this life.
    void granted(const Life& life, Seconds now);

    /// Deaths that were not noticed by all until `bound(loss)`.
    template <typename Bound>
    void check_losses(const Bound& bound);
    void fault(std::string text);

    const std::vector<std::string>& faults() const noexcept { return faults_; }
    std::uint64_t fault_count() const noexcept { return fault_count_; }
    const std::vector<HostLoss>& losses() const noexcept { return losses_; }
    int observers() const;

  private:
    static constexpr Seconds kKnown = 2;  // after it joined all know of an incarnation

    struct Truth {
        bool has_power = true;
        bool is_running = false;
        bool is_touched = false;
        std::set<fabricd::Incarnation> writing;  // sessions of these lives could still write
        fabricd::Incarnation incarnation = 0;
        Seconds renewed = -1e9;
    };
    static std::size_t index(int host) noexcept { return static_cast<std::size_t>(host); }
    HostLoss* open_loss(int observer, const Life& life);
    bool has_writers(const Life& life) const;

    const Seconds ttl_;
    std::vector<Truth> hosts_;
    std::map<Life, Seconds> began_;  // of sessions
    std::set<Life> granted_;
    std::vector<HostLoss> losses_;
    std::map<Life, std::size_t> loss_of_;
    std::vector<std::string> faults_;
    std::uint64_t fault_count_ = 0;
};

template <typename Bound>
void ClusterOracle::check_losses(const Bound& bound) {
    for (const HostLoss& loss : losses_) {
        // One that had only just joined was not known to all.
        if (!loss.is_death || loss.at - loss.began < kKnown) continue;
        const bool all = loss.losing >= observers();
        if (all && loss.last_lost <= bound(loss)) continue;
        fault("the death of host " + std::to_string(loss.host) + " at " + std::to_string(loss.at) +
              " s was noticed by " + std::to_string(loss.losing) + " of " +
              std::to_string(observers()) + ", by the last of them at " +
              std::to_string(loss.last_lost) + " s: too late");
    }
}

}  // namespace emu
