// What main() puts together where several hosts share one pool: the owner's side and the guest's.
// docs/hosts.md, "One pool, several hosts".

#pragma once

#include <memory>

#include "fabricd/config/config.hpp"
#include "fabricd/net/cluster.hpp"
#include "fabricd/peer/guest_daemon.hpp"
#include "fabricd/peer/peer_server.hpp"
#include "fabricd/server/admin_server.hpp"
#include "fabricd/server/daemon.hpp"

namespace fabricd {

/// What pool.owner and cluster.listen demand of other keys.
ErrorMessage check_pool_sharing(const Config& config);

/// Of an owner: how what the daemon writes becomes visible to guests.
ErrorMessage set_visibility(const Config& config, DaemonOptions& options);

/// nullptr without cluster.listen.
fabricshm::Result<std::unique_ptr<PeerServer>> start_peer_server(const Config& config,
                                                                 Daemon& daemon,
                                                                 const fabricshm::Uuid& pool);

/// A guest, in place of a daemon with a pool of its own.
fabricshm::Result<std::unique_ptr<GuestDaemon>> start_guest(const Config& config,
                                                            std::function<void()> on_tick);
AdminHooks admin_hooks_of(GuestDaemon& guest, Cluster& cluster);

}  // namespace fabricd
