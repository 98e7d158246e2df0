// Which job of a queue is next: a pure function of what is known of all of them. docs/jobs.md.

#pragma once

#include <string>
#include <vector>

#include "fabricd/jobs/job_folder.hpp"

namespace fabricd {

struct QueuedJob {
    unsigned number = 0;
    std::string name;
    int priority = 0;
    std::vector<std::string> after;  // numbers, or names: the last one of that name before it
    JobPhase state = JobPhase::kQueued;
    JobOutcome outcome = JobOutcome::kNone;
    bool is_managed = false;   // a task manager has it
    bool is_deferred = false;  // did not fit a moment ago
    bool is_slurms = false;    // Slurm has it: it takes no place of this queue
};

struct QueueStep {
    enum class Kind {
        kStart,
        kWait,
        kFail,    // what it waits for did not end well
        kOrphan,  // its task manager ended without saying how the job did
    };
    Kind kind;
    unsigned number;
    std::string reason;
};

/// One step for each job that is queued or has lost its manager, at most `at_once` jobs managed.
/// The larger priority goes first, of equal ones the lower number. The first one that does not fit
/// keeps those behind it waiting: a large job is not passed for ever by small ones. `jobs` in
/// ascending numbers.
std::vector<QueueStep> next_steps(const std::vector<QueuedJob>& jobs, unsigned at_once);

}  // namespace fabricd
