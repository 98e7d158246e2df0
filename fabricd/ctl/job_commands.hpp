// fabricctl jobs: job files, and the jobs made of them. docs/jobs.md.

#pragma once

#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Every action of `jobs`. Those that need a daemon find it themselves.
CtlExit serve_jobs(const CtlOptions& options);

}  // namespace fabricd
