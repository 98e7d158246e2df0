// Puts the cluster into the daemon: the name of this host, and what it does when its lease ends.

#pragma once

#include <memory>

#include "fabricd/config/config.hpp"
#include "fabricd/net/cluster.hpp"
#include "fabricd/peer/guest_daemon.hpp"
#include "fabricd/server/daemon.hpp"

namespace fabricd {

/// The cluster of the configuration, which `daemon` shows to its sessions from then on. After the
/// daemon, whose state folder it needs, and gone before it; before run().
fabricshm::Result<std::unique_ptr<Cluster>> start_cluster(const Config& config, Daemon& daemon);
/// Of a guest of another host's pool: its lease is what its sessions may write by.
fabricshm::Result<std::unique_ptr<Cluster>> start_cluster(const Config& config, GuestDaemon& guest);

}  // namespace fabricd
