// fabricctl tune: measures this machine and keeps what libfabricshm should know about it.

#pragma once

#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Measures the world sizes asked for and writes the tuning file; progress goes to standard error.
/// Needs no daemon, but an idle machine for about half a minute per world size: what else runs
/// would be measured, too. A size that was measured is kept when a later one fails.
CtlExit run_tune(const CtlOptions& options);

}  // namespace fabricd
