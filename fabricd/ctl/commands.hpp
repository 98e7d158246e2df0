// What fabricctl does, once its command line is read.

#pragma once

#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Runs the command: results to standard output, one line per mistake to standard error.
CtlExit run_command(const CtlOptions& options);

}  // namespace fabricd
