// fabricctl migrate and quota: what people do by hand where the control loop does it otherwise.

#pragma once

#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Moves a shard; how far it is goes to standard error, once per percent.
fabricshm::Result<void> migrate_shard(const CtlOptions& options, AdminClient& client);

/// Changes a quota and prints what is in force.
fabricshm::Result<void> set_quota(const CtlOptions& options, AdminClient& client);

}  // namespace fabricd
