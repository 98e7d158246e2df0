#include "fabricd/service/cluster_setup.hpp"

#include <span>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/os/identity.hpp"
#include "libfabricshm/os/random.hpp"

namespace fabricd {

fabricshm::Result<std::unique_ptr<Cluster>> start_cluster(const Config& config, Daemon& daemon) {
    const fabricshm::HostIdentity host = fabricshm::own_host();
    ClusterSetup setup;
    setup.config = config.cluster;
    setup.record.machine = host.machine;
    setup.record.boot = host.boot;
    const PoolView pool = daemon.snapshot({}).pool;
    setup.record.pool = pool.backend + ", " + fabricshm::format_bytes(pool.capacity_bytes);
    FABRIC_TRY_VOID(
        fabricshm::fill_random(std::as_writable_bytes(std::span(&setup.record.instance, 1))));
    setup.place_path = config.state.dir + "/cluster";
    // No memory is shared between hosts yet, and so no session has to be ended: all of them use
    // memory of this host alone, and go on.
    setup.end_shared_sessions = [] { return fabricshm::Result<void>{}; };
    FABRIC_TRY(std::unique_ptr<Cluster> cluster, Cluster::start(std::move(setup)));
    daemon.share_hosts([&cluster = *cluster] { return cluster.last_view(); });
    return cluster;
}

}  // namespace fabricd
