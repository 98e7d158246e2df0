#include "fabricd/service/cluster_setup.hpp"

#include <span>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/os/identity.hpp"
#include "libfabricshm/os/random.hpp"

namespace fabricd {

using fabricshm::Result;

namespace {

Result<ClusterSetup> setup_of(const Config& config, const PoolView& pool) {
    const fabricshm::HostIdentity host = fabricshm::own_host();
    ClusterSetup setup;
    setup.config = config.cluster;
    setup.record.machine = host.machine;
    setup.record.boot = host.boot;
    setup.record.pool = pool.backend + ", " + fabricshm::format_bytes(pool.capacity_bytes);
    FABRIC_TRY_VOID(
        fabricshm::fill_random(std::as_writable_bytes(std::span(&setup.record.instance, 1))));
    setup.place_path = config.state.dir + "/cluster";
    return setup;
}

ClusterDesk desk_of(Cluster& cluster) {
    return {[&cluster] { return cluster.last_view(); },
            [&cluster](const Survivors& survivors) { return cluster.settle(survivors); }};
}

}  // namespace

Result<std::unique_ptr<Cluster>> start_cluster(const Config& config, Daemon& daemon) {
    FABRIC_TRY(ClusterSetup setup, setup_of(config, daemon.snapshot({}).pool));
    // Its sessions use memory of this host, or of a pool that this host owns: none but a person
    // gives that to others (--take-over, docs/adr/0009), and so they go on.
    setup.end_shared_sessions = [] { return fabricshm::Result<void>{}; };
    FABRIC_TRY(std::unique_ptr<Cluster> cluster, Cluster::start(std::move(setup)));
    daemon.share_cluster(desk_of(*cluster));
    return cluster;
}

Result<std::unique_ptr<Cluster>> start_cluster(const Config& config, GuestDaemon& guest) {
    FABRIC_TRY(ClusterSetup setup, setup_of(config, guest.snapshot().pool));
    setup.end_shared_sessions = [&guest] { return guest.end_sessions(); };
    FABRIC_TRY(std::unique_ptr<Cluster> cluster, Cluster::start(std::move(setup)));
    guest.share_cluster(desk_of(*cluster));
    return cluster;
}

}  // namespace fabricd
