// Folders of jobs that have ended, and are not wanted any more.

#pragma once

#include <string>

#include "fabricd/jobs/job_folder.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// Takes a job's number from its folder, which deletes nothing yet: from now on there is no such
/// job, and after a failure there is all of it. The caller holds its lock.
fabricshm::Result<void> retire_folder(const std::string& jobs, const JobFolder& folder);

struct SweptJobs {
    fabricshm::Bytes bytes = 0;  // of the disk
    std::string problem;         // what can't be deleted and why; "": it is all gone
};

/// Deletes what retired folders have, of removals that were killed, too, and what kills of `run`
/// and `submit` have left without a number for an hour. Any number of processes may do it at a
/// time.
SweptJobs sweep_jobs(const std::string& jobs);

}  // namespace fabricd
