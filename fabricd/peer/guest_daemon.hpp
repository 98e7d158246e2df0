// GuestDaemon: fabricd on a host whose pool belongs to another host's daemon. Its clients' packets
// go to the owner and its answers to them; what happens to their processes it says itself.
// docs/hosts.md, "One pool, several hosts".

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabricd/net/cluster_view.hpp"
#include "fabricd/peer/peer_address.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/server/cluster_desk.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/machine/dax_devices.hpp"

namespace fabricd {

struct GuestOptions {
    std::string socket_path;
    unsigned socket_mode = 0600;
    std::string socket_group;
    std::vector<std::uint32_t> allow_uids;
    int max_sessions = 1024;

    std::string owner;  // as check_peer_address() admits it
    PeerFiles files;
    std::string host;     // this one's name
    bool flushes = true;  // what ended sessions wrote; not where hardware keeps hosts coherent
    std::function<void()> on_tick;  // on the control thread, about each second; may be empty
};

/// One per process. run()'s thread is the control thread; the other functions are for any.
class GuestDaemon {
  public:
    /// Listens, and begins to call the owner. `devices` are those that the owner has, too.
    static fabricshm::Result<std::unique_ptr<GuestDaemon>> start(GuestOptions options,
                                                                 fabricshm::DaxDevices devices);
    ~GuestDaemon();
    GuestDaemon(const GuestDaemon&) = delete;
    GuestDaemon& operator=(const GuestDaemon&) = delete;

    /// Serves until stop(). Sessions go on after that, and come back to the next daemon.
    fabricshm::Result<void> run();
    /// Async-signal-safe.
    void stop() noexcept;

    /// While draining, no connection of a client is taken; those that are there go on.
    void drain(bool on) noexcept;

    /// The cluster, by which a guest knows its incarnation; before run(). Without it, or in a
    /// cluster without leases, the owner hears of this host's end by a person alone.
    void share_cluster(ClusterDesk cluster);

    /// Ends all processes that have a session, and returns when they are gone and what they wrote
    /// is out of this host's caches: 5 s at most, then kTimeout. Until the cluster has given this
    /// host another incarnation no session begins. kBusy: those that are known have ended, but the
    /// owner has not said yet which there are from before this daemon, or some can't be watched.
    fabricshm::Result<void> end_sessions();

    /// Whether no process of this host has a session any more. False also while that is not known.
    bool is_empty() const;

    /// The pool, the sessions of this host, and an alarm while the owner does not answer.
    Snapshot snapshot() const;

  private:
    struct Impl;
    explicit GuestDaemon(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
