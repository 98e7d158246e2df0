// fabricctl doctor: what is wrong with this host, and what mends it.

#pragma once

#include "fabricd/ctl/ctl_options.hpp"
#include "fabricd/ctl/doctor/host_facts.hpp"

namespace fabricd {

/// Examines this host. Asks its daemon, if there is one, and attaches to it for a moment; each
/// waits a second at most. Changes nothing.
HostFacts read_host(const CtlOptions& options);

/// kFailed with a warning or a problem, kOk otherwise, with or without a daemon. kUsage when the
/// configuration that was named is not there.
CtlExit run_doctor(const CtlOptions& options);

}  // namespace fabricd
