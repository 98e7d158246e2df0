// `fabricctl trace`: what the ranks of a job do, into a file for a trace viewer. docs/tracing.md.

#pragma once

#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Lasts as long as the trace; Ctrl-C ends it early with what there is. kNotFound without such a
/// job; kSystem when the file can't be written.
fabricshm::Result<void> trace_job(const CtlOptions& options, AdminClient& client);

}  // namespace fabricd
