// fabricctl tune: measures this machine and keeps what libfabricshm should know about it.

#pragma once

#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Measures the world sizes asked for and writes the tuning file; progress goes to standard error.
CtlExit run_tune(const CtlOptions& options);

}  // namespace fabricd
