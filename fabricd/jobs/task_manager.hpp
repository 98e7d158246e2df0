// The task manager: the process that has the agents of a job's groups start its ranks, watches
// them, and ends them. docs/jobs.md.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fabricd/jobs/job_device_watch.hpp"
#include "fabricd/jobs/job_folder.hpp"
#include "fabricd/jobs/job_plan.hpp"
#include "fabricd/jobs/manager_state.hpp"

namespace fabricd {

struct ManagedJob {
    JobSpec spec;
    std::vector<JobNode> nodes;
    JobPlan plan;
    std::string attach_socket;       // "": without a daemon
    std::vector<std::string> agent;  // the words that start an agent; its number is added
    bool on_terminal = true;         // the ranks' lines to this process's outputs
    // Of a manager that was killed and whose agents this one takes over; nodes and plan are its.
    std::optional<jobs::v1::ManagerState> state = {};
    DeviceLook look = {};  // at the devices of the first node; none: they have no names
};

/// Blocks SIGINT, SIGTERM and SIGHUP, for run_task_manager() to read. Call before any thread
/// starts: a signal to a thread that does not block it would end the process.
fabricshm::Result<fabricshm::Fd> block_job_signals();

/// Runs the job to its end; each edge is in the journal of `folder`, whose lock this process holds.
/// Returns the exit code: that of the rank that ended the job (128 + signal), 124 for the time
/// limit, 128 + the signal that ended it, 0.
///
/// The calling thread has to be the process's first: the kernel ends the agents with it, and the
/// ranks with their agents. A second signal skips the grace period.
int run_task_manager(ManagedJob job, const JobFolder& folder, fabricshm::Fd signals);

}  // namespace fabricd
