// fabricctl decisions, why and replay: what the control loop did, why, and what it would have done.

#pragma once

#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Asks the daemon for its decisions, all the newest ones or one of them with its reasons.
/// Both see what the daemon remembers in memory; older decisions are in its journal, for
/// run_replay(). They fail where the daemon can't be asked; kNotFound: it knows none of that
/// number.
fabricshm::Result<void> show_decisions(const CtlOptions& options, AdminClient& client);
fabricshm::Result<void> show_why(const CtlOptions& options, AdminClient& client);

/// Runs the windows of a journal through the loop, with the journal's settings and those of --set.
/// Needs no daemon. Complains on standard error.
CtlExit run_replay(const CtlOptions& options);

}  // namespace fabricd
