// fabricctl dashboard: a live page of this host's daemon.

#pragma once

#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Serves the page until SIGINT or SIGTERM, and prints its address first. Needs no daemon: the page
/// says that there is none, and finds it when it comes. Blocks both signals in the process.
CtlExit run_dashboard(const CtlOptions& options);

}  // namespace fabricd
