// The jobs that there are, as their folders have them: list, show, why, logs, cancel, leaks.

#pragma once

#include <string>
#include <vector>

#include "fabricd/config/config.hpp"
#include "fabricd/ctl/ctl_options.hpp"
#include "fabricd/jobs/job_folder.hpp"
#include "fabricd/jobs/job_queue.hpp"

namespace fabricd {

/// A job with what its folder says of it.
struct JobRecord {
    QueuedJob job;  // is_managed: a process holds its lock
    std::vector<JobEdge> edges;
    std::string slurm;  // the number that Slurm gave it; "": none

    /// Its task manager was killed, and no other one has come.
    bool is_lost() const {
        return !edges.empty() && job.state != JobPhase::kEnded && job.state != JobPhase::kQueued &&
               !job.is_managed && !job.is_slurms;
    }
};

/// All jobs of `jobs`, ascending. A folder whose file can't be read has an empty name.
std::vector<JobRecord> read_job_records(const std::string& jobs);

/// By its number, or the last one of that name; nullptr: there is none.
const JobRecord* find_record(const std::vector<JobRecord>& records, const std::string& what);

/// By its number, or a name that no other one has; nullptr, and `problem` says why.
const JobRecord* find_only_record(const std::vector<JobRecord>& records, const std::string& what,
                                  std::string& problem);
/// "job 7 (rn50)".
std::string label_of(const JobRecord& record);

CtlExit list_jobs(const CtlOptions& options);
CtlExit show_job(const CtlOptions& options);
CtlExit explain_job(const CtlOptions& options);
CtlExit show_job_logs(const CtlOptions& options);
CtlExit cancel_job(const CtlOptions& options);
/// What ended jobs left: processes, arenas, and jobs without a manager. Exit code 1: there is
/// something.
CtlExit show_job_leaks(const CtlOptions& options);

}  // namespace fabricd
