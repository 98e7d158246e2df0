// fabricctl drain and shutdown, discover and completion: the daemon as a whole, this host, and this
// program.

#pragma once

#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Takes no new sessions, or takes them again. With --wait it blocks until all sessions have ended:
/// how many are left goes to standard error; kTimeout after that time.
fabricshm::Result<void> drain_daemon(const CtlOptions& options, AdminClient& client);

/// Ends the daemon and waits until its socket is free, ten seconds without --wait; else kTimeout.
fabricshm::Result<void> shut_down(const CtlOptions& options, AdminClient& client);

/// What this host offers as a pool, and what its daemon emulates, if one answers.
CtlExit discover_host(const CtlOptions& options);

/// The script that completes this command line in the shell of options.subject.
CtlExit print_completion(const CtlOptions& options);

}  // namespace fabricd
