// Jobs that go through Slurm: one job file, one job of sbatch. docs/jobs.md.

#pragma once

#include <optional>
#include <string>

#include "fabricd/ctl/ctl_options.hpp"
#include "fabricd/jobs/job_folder.hpp"
#include "fabricd/jobs/job_plan.hpp"

namespace fabricd {

/// The words of sbatch and the script that would run; nothing is started.
CtlExit show_slurm_check(const CtlOptions& options);
CtlExit submit_slurm_job(const CtlOptions& options);

/// The number that Slurm gave to the job of a folder, "" before it has one; nothing: no job of
/// Slurm's.
std::optional<std::string> slurm_number(const JobFolder& folder);

/// Asks Slurm, at most so long as a command of a user may wait, for the jobs that have not ended by
/// their journals, and writes down what it says of them: why they wait, and ends that their scripts
/// could not write. One line to standard error when Slurm does not answer.
void refresh_slurm_jobs(const std::string& jobs);

/// scancel; what follows, Slurm does.
CtlExit cancel_slurm_job(const JobFolder& folder);

/// The plan that a submitted job has, from the files of its folder: the same in each process. One
/// line on what is wrong, or nothing.
std::optional<std::string> read_slurm_plan(const std::string& folder, JobSpec& spec,
                                           std::vector<JobNode>& nodes, JobPlan& plan);

}  // namespace fabricd
