// The devices of a job that runs, as the daemon and the file of --devices have them then.

#pragma once

#include "fabricd/ctl/ctl_options.hpp"
#include "fabricd/jobs/job_device_watch.hpp"

namespace fabricd {

/// With --devices the names are the file's, which is read again at each look; the faults are the
/// daemon's, where it may be asked. For one thread at a time.
DeviceLook device_look(const CtlOptions& options);

}  // namespace fabricd
