// Daemon: the attach socket, the control thread's event loop and the registry behind it.
// fabricd/main.cpp makes one; the admin API asks it for snapshots. See docs/concurrency.md.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/pool/limits.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/server/cluster_desk.hpp"
#include "fabricd/server/outbox.hpp"
#include "fabricd/server/request_stats.hpp"
#include "fabricd/telemetry/sampler.hpp"
#include "fabricd/telemetry/session_pages.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/machine/pool_backend.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/shm/link_page.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Duration;
using fabricshm::Result;

class AttachServer;
class RemoteHosts;
struct ClusterView;
struct OpenRange;
struct Peer;
struct RemoteSession;
struct ShardId;

/// What main decides. Limits keep one client from exhausting the daemon; 0 bytes means no limit of
/// its own (the pool's capacity always is one).
struct DaemonOptions {
    std::string socket_path;  // absolute; its directory is made with 0700 when missing
    unsigned socket_mode = 0600;
    std::string socket_group;  // "": none; else the socket's group, whose members are admitted
    std::vector<std::uint32_t> allow_uids;  // besides root and the daemon's own user
    std::string state_dir;                  // the journal's; made with 0700 when missing
    bool refuses_damage = false;  // a damaged journal ends the start; else the daemon starts empty

    Limits limits;  // of clients
    ReplyLimits replies;

    std::vector<DeviceSpec> devices;  // that sessions may say they compute on
    /// The links of an emulated machine: new arenas get a link page. Nothing: none is emulated.
    std::optional<fabricshm::LinkImage> links;
    std::string machine;  // one line on it, for status

    /// How what the daemon writes into arenas becomes visible to other hosts that share the pool,
    /// and the name of that profile, for sessions. nullptr and "": they are of one host.
    std::shared_ptr<fabricshm::VisibilityPolicy> visibility;
    std::string visibility_profile;  // "": the pool is of this host alone
    bool dax_trust_users = false;    // arenas of a DAX pool may be published
    std::string host_name;           // of a shared pool: by which this host may have been a guest

    Duration adopt_grace = std::chrono::seconds(10);  // for sessions to come back after a restart

    SamplerOptions sampling;
    /// What to ask about the load of devices; called once, by start(). Empty: nothing.
    std::function<std::vector<std::unique_ptr<DeviceSource>>()> device_sources;

    /// What sessions may ask of the cluster; see Daemon::share_cluster(). Empty: there is none.
    ClusterDesk cluster;

    /// Called on the control thread about every `tick_period`: proof of life for a watchdog. Must
    /// not block and must not call the Daemon. May be empty.
    std::function<void()> on_tick;
    Duration tick_period = std::chrono::seconds(1);
};

/// The threads: run()'s is the control thread, the registry's and the sockets' only one. Others are
/// for the pool, for copies of shards and for sampling; see docs/concurrency.md. Everything else
/// may be called from any thread, as said below.
class Daemon {
  public:
    /// Takes the lock of the socket, reads the journal, listens. From here on clients may connect;
    /// they are answered once run() is entered. Fails with kBusy while another daemon is alive on
    /// that socket, kInvalid for an option out of its range, kDenied or kSystem from the system,
    /// kCorrupt for a damaged journal with `refuses_damage`, or with arenas in the pool that only
    /// the journal could have named. A disk that is full or read-only does not end it: nothing is
    /// granted then until it can be written.
    static Result<std::unique_ptr<Daemon>> start(DaemonOptions options,
                                                 std::unique_ptr<fabricshm::PoolBackend> backend);

    /// Removes the socket. Arenas, sessions and the journal stay as they are: a daemon started
    /// afterwards goes on with the sessions that are still alive.
    ~Daemon();
    Daemon(const Daemon&) = delete;
    Daemon& operator=(const Daemon&) = delete;

    /// Serves until stop(). The calling thread is the control thread. Call once.
    Result<void> run();

    /// DaemonOptions::cluster, where it needs the daemon itself. Called on the control thread; must
    /// not block. Before run().
    void share_cluster(ClusterDesk cluster);

    /// Of a pool that other hosts use, with caches that are not coherent with this host's: `flush`
    /// writes a range of the pool out of this host's. Called on a thread of its own. Before run().
    void write_out_by(std::function<Result<void>(const OpenRange& range)> flush);

    /// Makes run() return. Async-signal-safe and thread-safe; before run() it is remembered.
    void stop() noexcept;

    /// What the daemon holds now. Any thread; waits for turns of the control thread (well below a
    /// millisecond each). More than some thousand objects are looked at in several turns, so that
    /// clients are served in between: each turn's are of one moment. Before run() and after it the
    /// answer is made on the calling thread.
    Snapshot snapshot(const SnapshotParts& parts = SnapshotParts::all());

    /// How long requests of sessions and of the admin API took and how sessions were answered,
    /// since run(). Any thread, as all that follows.
    RequestStats request_stats();

    /// Devices and those of `shards` that there are, for frequent callers. As snapshot().
    Places places(const std::vector<ShardId>& shards);

    /// Which ranks wait for which; see Registry::waiting(). As snapshot().
    std::vector<WaitingView> waiting();

    /// One shard; see Registry::shard(). As snapshot().
    std::optional<ShardView> shard(const std::string& name);

    /// Begins to move a shard; see Registry::move_shard() for the errors. `done` (may be empty)
    /// hears once how it ended, on the control thread, unless this fails; not when the daemon ends
    /// before. Any thread but that one.
    Result<void> move_shard(const MoveOrder& order, std::function<void(const Result<void>&)> done);

    /// Changes a quota; see Registry::set_quota(). Any thread but the control thread.
    Result<QuotaState> set_quota(const QuotaOrder& order);

    /// Shifts quotas of devices, or of caches; see Registry::shift_quotas(). As set_quota().
    Result<void> shift_quotas(const std::vector<QuotaShift>& shifts);

    /// `what` with the sessions' connections, on the control thread; not called before run() and
    /// after it. `request`: for the statistics. Any thread but that one.
    void on_server(const char* request, const std::function<void(AttachServer&)>& what);

    // Of hosts that share the pool, for their daemons' sake; see RemoteHosts. Any thread but the
    // control thread.
    void take_guest(fabricshm::UnixSocket socket, const Peer& peer);
    /// `what` on the control thread, and what follows from it. `request`: for the statistics.
    void on_guests(const char* request, const std::function<void(RemoteHosts&)>& what);
    Result<std::vector<RemoteSession>> greet_guest(const Peer& host);
    int fence_guest(const std::string& host);
    /// Of the pool, without a turn of the control thread. Any thread.
    Bytes used_bytes() const;

    /// While draining, new sessions and new arenas are refused with kBusy; what is there goes on.
    /// Any thread.
    void drain(bool on);

    /// The telemetry and directive pages of the sessions. Any thread; lives as long as the daemon.
    SessionPages& pages() noexcept;

    /// What was sampled of sessions, devices and paths; empty before run(). Any thread.
    const Sampler& sampler() const noexcept;

  private:
    struct Impl;
    explicit Daemon(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
