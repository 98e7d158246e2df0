// A job file as one job of Slurm: where its ranks go, the words of sbatch and the batch script.
// Pure. docs/jobs.md.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fabricd/jobs/job_plan.hpp"

namespace fabricd {

/// What the words and the script need besides the job.
struct SlurmContext {
    std::string folder;               // of the job, an absolute path that all nodes see
    std::string directory;            // where the ranks run
    std::string fabricctl;            // its path, on all nodes
    std::vector<std::string> behind;  // numbers that Slurm gave to jobs that have to end well first
};

/// Plans the ranks onto nodes that Slurm will choose: one component for each group, as many nodes
/// as it says, with the `devices` of the device file each; none: what Slurm gives, all alike. No
/// two components share a node, as Slurm has it.
///
/// On success nothing is returned; otherwise one line, and `nodes` and `plan` are untouched.
std::optional<std::string> plan_slurm_job(const JobSpec& spec,
                                          const std::vector<JobDevice>& devices,
                                          std::vector<JobNode>& nodes, JobPlan& plan);

/// "sbatch ... COMPONENT : COMPONENT ... SCRIPT", where the script is a file of the folder.
std::vector<std::string> sbatch_words(const JobSpec& spec, const SlurmContext& context);

/// What sbatch runs on the first node: starts the ranks of all components as one step, again after
/// a failure as often as max_restarts says, and writes the job's journal.
std::string slurm_script(const JobSpec& spec, const SlurmContext& context);

/// As one word of a POSIX shell, whatever is in it.
std::string shell_quoted(const std::string& word);
/// All of them, with spaces between.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace fabricd
