// One rank of a job of Slurm: what a task of its step runs. docs/jobs.md.

#pragma once

#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Starts the rank whose number Slurm has in this process's environment, of the job whose folder is
/// WHAT, and waits for its end. SIGTERM ends the rank, within the job's grace period; the code is 1
/// then: srun takes the largest of all tasks, which so is that of the rank that failed first.
/// SIGUSR1 and SIGUSR2 are passed on. The rank ends with this process.
CtlExit run_slurm_rank(const CtlOptions& options);

}  // namespace fabricd
