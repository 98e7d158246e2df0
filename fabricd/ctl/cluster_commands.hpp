// fabricctl hosts.

#pragma once

#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/ctl_options.hpp"
#include "fabricd/ctl/json.hpp"

namespace fabricd {

/// Prints the hosts of the cluster; with options.host_action "fence" a person's word goes to the
/// daemon before: memory that the host may still write to is given to others then. The parser lets
/// it through with a name and --confirmed only.
fabricshm::Result<void> serve_hosts(const CtlOptions& options, AdminClient& client);

/// The object of `fabricctl hosts --json`.
Json json_of(const ClusterView& view);

}  // namespace fabricd
