// What is found out of a job file before anything of it is started.

#pragma once

#include <string>

#include "fabricd/config/device_file.hpp"
#include "fabricd/ctl/ctl_options.hpp"
#include "fabricd/jobs/job_plan.hpp"

namespace fabricd {

/// Writes one line to standard error, and returns `code`.
CtlExit fail_job(CtlExit code, const std::string& text);
/// What fail_job() said last: of a job from the queue no terminal shows it.
const std::string& last_job_failure();

/// The job file that the command line names, and what a rank would fail at right away: a script, a
/// program or data that are not there.
CtlExit read_checked_job(const CtlOptions& options, std::string& text, JobSpec& spec);

/// A device of a device file, of whose quota `used` bytes are taken.
JobDevice job_device(const DeviceSpec& spec, Bytes used);

}  // namespace fabricd
