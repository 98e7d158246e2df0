// Time of a simulated cluster: events in their order, and daemons that wait for theirs.

#pragma once

#include <memory>
#include <random>
#include <vector>

#include "emu/sim/event_queue.hpp"
#include "emu/sim/fiber.hpp"
#include "fabricd/net/boot_clock.hpp"

namespace emu {

/// Kinds of events of a simulated cluster; the number of an event is a host unless it says
/// otherwise.
enum ClusterEvent : int {
    kWakeDaemon,
    kRequestArrives,  // at the store
    kLeaseIsDue,      // its number: the lease
    kStoreIsBack,
    kFailure,     // its number: the failure
    kFailureEnd,  // likewise
    kStartHost,
    kFencePower,  // the host that is switched off
    kSnapshot,    // of the store; its number: the failure that restores it
};

/// What one daemon waits for. Its place in `ClusterTime` is that of its host.
struct DaemonWait {
    std::unique_ptr<Fiber> fiber;
    Seconds wake_at = 0;
    bool is_paused = false;   // its machine stands still: it is woken when that goes on
    bool is_overdue = false;  // its time came meanwhile
    bool is_ending = false;   // it has no effect any more and never waits: it runs to its end
};

class ClusterTime {
  public:
    ClusterTime(int hosts, std::uint64_t seed) : daemons_(static_cast<std::size_t>(hosts)) {
        random_.seed(seed);
    }

    Seconds now() const noexcept { return queue_.now(); }
    /// As a daemon's clock says it. It begins at an hour: 0 means "never" in some places.
    fabricd::BootTime boot_now() const noexcept { return boot_time(now()); }
    static fabricd::BootTime boot_time(Seconds at) noexcept;
    static Seconds seconds(fabricd::BootTime at) noexcept;

    void schedule(Seconds at, ClusterEvent kind, int which) { queue_.schedule(at, kind, which); }
    Event next() { return queue_.pop(); }
    Seconds next_at() const noexcept { return queue_.next_at(); }
    std::uint64_t events() const noexcept { return queue_.popped(); }

    DaemonWait& daemon(int host) noexcept { return daemons_[static_cast<std::size_t>(host)]; }

    /// Starts what a daemon does. The one before has ended.
    void start(int host, std::function<void()> body);
    /// Of the daemon that runs: it goes on at `until`, or when hurry() says so.
    void sleep(int host, Seconds until);
    /// A daemon that sleeps longer is woken at `at`.
    void hurry(int host, Seconds at);
    /// Its time has come, of an event or otherwise.
    void wake(const Event& event);
    void pause(int host) noexcept { daemon(host).is_paused = true; }
    void go_on(int host);
    /// Runs it to its end, at this moment and without effect.
    void end(int host);

    /// At least 0 and less than 1.
    double random() noexcept;
    /// Log-normal, by its median and the value that 99 of 100 stay below.
    double random(double median, double p99) noexcept;

  private:
    EventQueue queue_;
    std::vector<DaemonWait> daemons_;
    std::mt19937_64 random_;
};

}  // namespace emu
