// The queue: a process of its user's that has task managers run what was submitted. docs/jobs.md.

#pragma once

#include <string>

#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Works through the queue until SIGTERM or SIGINT. It may be killed at any time: the managers go
/// on, and the next one finds them by their locks.
CtlExit serve_job_queue(const CtlOptions& options);

/// Whether a queue works through `jobs` now.
bool is_queue_served(const std::string& jobs);

}  // namespace fabricd
