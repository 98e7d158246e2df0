// Commands for operators of a daemon: is it well, what happened, what is this id, end that.

#pragma once

#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/ctl_options.hpp"
#include "fabricd/ctl/json.hpp"

namespace fabricd {

/// Asks five times and says how long the answers took. An error when the daemon drains or its pool
/// is nearly full, after saying so.
fabricshm::Result<void> show_health(const CtlOptions& options, AdminClient& client);

/// The newest lines of the daemon's log.
fabricshm::Result<void> show_events(const CtlOptions& options, AdminClient& client);

/// The object of `fabricctl events --json`.
Json json_of(const std::vector<EventView>& events);

/// Everything of this id or name, and what hangs together with it.
fabricshm::Result<void> inspect(const CtlOptions& options, AdminClient& client);

/// Ends the process of a session, or of all sessions of an arena: SIGTERM, and SIGKILL after the
/// grace. The daemon then takes their memory back as after any death: it can't be taken from a
/// process that lives, which would go on storing into it.
fabricshm::Result<void> evict(const CtlOptions& options, AdminClient& client);

}  // namespace fabricd
