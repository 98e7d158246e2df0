// fabricctl migrate and quota: what people do by hand where the control loop does it otherwise.

#pragma once

#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Moves a shard; how far it is goes to standard error, once per percent.
/// Blocks until the shard is in its new place or has stayed in the old one. Ending fabricctl
/// meanwhile does not end the move: the daemon goes on with it.
fabricshm::Result<void> migrate_shard(const CtlOptions& options, AdminClient& client);

/// Changes a quota and prints what is in force.
/// Returns once the daemon has taken the order. A quota below what is in use is only announced: it
/// comes into force when enough was given back, or when the grace period is over.
fabricshm::Result<void> set_quota(const CtlOptions& options, AdminClient& client);

}  // namespace fabricd
