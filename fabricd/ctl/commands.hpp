// What fabricctl does, once its command line is read.

#pragma once

#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Runs the command: results to standard output, one line per mistake to standard error.
/// Blocks as long as the command does: a watch until it is ended, a drain with --wait until the
/// sessions are gone. For the main thread: users are resolved by functions that are not thread-
/// safe.
CtlExit run_command(const CtlOptions& options);

}  // namespace fabricd
