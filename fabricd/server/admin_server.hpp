// The admin API on a unix socket of mode 0600, served by gRPC's threads.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/control/journal/decision.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/telemetry/job_trace.hpp"
#include "fabricd/telemetry/sample.hpp"
#include "fabricd/vgpu/vgpu_view.hpp"
#include "libfabricshm/base/log_spdlog.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

struct ClusterView;

using fabricshm::Result;

/// What the API does to the daemon. Called on gRPC's threads, several at once; each may take as
/// long as the control thread's next turn, a snapshot some turns. What they capture outlives the
/// server. An empty one is a feature that this daemon does not have.
struct AdminHooks {
    std::function<Snapshot(const SnapshotParts& parts)> snapshot;
    std::function<void(bool on)> drain;
    std::function<void()> shutdown;
    std::function<Sample()> sample = {};  // empty: nothing is sampled
    std::function<std::vector<VgpuView>()> vgpus = {};
    std::function<fabricshm::Result<void>(const VgpuOrder&)> set_vgpu = {};
    /// Daemon::move_shard() and Daemon::set_quota().
    std::function<Result<void>(const MoveOrder&, std::function<void(const Result<void>&)>)> move =
        {};
    std::function<Result<QuotaState>(const QuotaOrder&)> quota = {};
    /// Daemon::shard(); there when `move` is.
    std::function<std::optional<ShardView>(const std::string& name)> shard = {};
    /// Daemon::waiting().
    std::function<std::vector<WaitingView>()> waiting = {};
    /// JobTraces::begin().
    std::function<Result<std::unique_ptr<JobTrace>>(const std::string& job,
                                                    fabricshm::Duration length)>
        trace = nullptr;
    /// The newest lines of the log.
    std::function<std::vector<fabricshm::LogEvent>(std::size_t most)> events = nullptr;
    /// The decision `id`, or the newest `last` (0: all). Empty: there is no control loop.
    std::function<std::vector<Decision>(std::uint64_t id, std::size_t last)> decisions = nullptr;
    /// Cluster::view() and Cluster::confirm_fence().
    std::function<std::shared_ptr<const ClusterView>()> hosts = nullptr;
    std::function<Result<void>(const std::string& host)> fence_host = nullptr;
};

/// One per daemon. Made after what its hooks call into, and gone before it.
class AdminServer {
  public:
    /// Listens at `socket_path` (absolute, its folder is there). A socket left behind by a daemon
    /// that died is replaced; kBusy when a daemon answers on it. kInvalid: the path is too long.
    static fabricshm::Result<std::unique_ptr<AdminServer>> start(const std::string& socket_path,
                                                                 AdminHooks hooks);

    /// Ends running watches, answers what was asked, removes the socket. At most two seconds.
    ~AdminServer();
    AdminServer(const AdminServer&) = delete;
    AdminServer& operator=(const AdminServer&) = delete;

  private:
    struct Impl;
    explicit AdminServer(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

/// "unix:/path" with the characters escaped that a gRPC address can't have.
std::string grpc_address(const std::string& socket_path);

/// What connecting to a socket gives: kOk: a daemon listens; kNotFound, kDenied, or kDaemon: a file
/// that none listens on.
fabricshm::Errc probe_socket(const std::string& socket_path);

/// A descriptor of the process that listens there, which can be waited for. None: no process does,
/// or it can't be seen from here (another namespace of processes).
fabricshm::Fd daemon_process(const std::string& socket_path);

}  // namespace fabricd
