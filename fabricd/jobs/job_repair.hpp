// What becomes of a job after a failed rank or a faulty device: pure functions. docs/jobs.md.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fabricd/jobs/job_plan.hpp"

namespace fabricd {

/// What is known of a device now.
struct DeviceState {
    std::string name;
    std::string faults;  // "ecc,thermal", as the daemon has them; "": none
};

/// A device of the job whose state is not what it was.
struct DeviceChange {
    std::size_t device = 0;       // of JobNode::devices
    std::vector<unsigned> ranks;  // that are on it, ascending; not empty
    std::string state;            // "faulty: ecc", "removed"; "": it works again
    bool is_serious = false;      // no rank is placed on it any more
};

/// "device gpu0 of ranks 0, 2 is faulty: ecc"
std::string change_text(const JobNode& node, const DeviceChange& change);

/// What a running job knows of the devices of its node, look by look.
class DeviceHealth {
  public:
    /// Writes JobDevice::fault for each device, and returns what changed on those with ranks since
    /// the last call. A device that the look does not have is removed. A thermal fault alone is no
    /// reason to leave: it computes more slowly, and right.
    std::vector<DeviceChange> update(JobNode& node, std::size_t number, const JobPlan& plan,
                                     const std::vector<DeviceState>& look);

  private:
    std::vector<std::string> shown_;  // by device
};

/// What a failed rank leads to.
enum class JobRepair {
    kRestartRank,
    kRestartAll,
    kShrink,  // all but that one are started again
    kEnd
};

/// `restarts`: how many of max_restarts are used. A rank whose device is faulty does not come back
/// alone: it would come back to that device.
JobRepair repair_of(const JobSpec& spec, const std::vector<JobNode>& nodes, const JobPlan& plan,
                    unsigned rank, unsigned restarts);

struct NextAttempt {
    JobSpec spec;  // its groups may have fewer ranks
    JobPlan plan;
    std::string change;  // one line on what is not as before, and why; "": nothing
};

/// Where the ranks of the next attempt go. Those of sound devices stay where they are as long as
/// all devices are sound; otherwise the job is planned again over the sound ones, with as few ranks
/// less as fit, but not below min_ranks. `left_out`: a rank that does not come back. The error is
/// one line on why there is no next attempt.
struct AttemptPlan {
    std::optional<NextAttempt> next;
    std::string problem;  // without `next`
};
AttemptPlan plan_attempt(const JobSpec& spec, const std::vector<JobNode>& nodes,
                         const JobPlan& plan, std::optional<unsigned> left_out);

}  // namespace fabricd
