// The processes that jobs have started, by what they have in their environment.

#pragma once

#include <sys/types.h>

#include <vector>

#include "fabricd/jobs/job_folder.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

struct JobProcess {
    pid_t pid = 0;
    unsigned job = 0;
    fabricshm::Fd handle;  // a pidfd: the number may be another process's by now
};

/// Those of this user, for jobs of this folder of jobs. One that has given itself another
/// environment is not found.
std::vector<JobProcess> job_processes();

/// Of a job that has ended: its ranks, and what they have started. The caller holds its lock, so
/// that no other task manager comes.
void kill_job_processes(unsigned job);

/// Ends a job whose task manager was killed: its ranks, what they have started, and its agents,
/// which wait for another manager at their doors. Then writes `end` down, or the one that had been
/// decided when it was ending already, and returns it. The caller holds its lock. Takes some 10 ms,
/// and seconds (kAgentsLeaveWithin twice) where an agent does not leave.
JobEdge end_lost_job(const JobFolder& folder, JobEdge end);

}  // namespace fabricd
