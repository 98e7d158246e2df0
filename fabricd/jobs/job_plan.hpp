// Where the ranks of a job go: a pure function of the job and of what its hosts have. docs/jobs.md.

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/jobs/job_spec.hpp"

namespace fabricd {

/// What a rank can compute on.
struct JobDevice {
    std::string name;  // as the device file has it; "": the processors of a host without devices
    std::string kind;
    double speed = 0.0;      // of the slice, in any unit that is the same for all
    Bytes free = 0;          // of its quota in the pool
    std::string fault = {};  // "faulty: ecc", "removed": it gets no rank; "": none
};

/// A host, with the devices that jobs may have of it.
struct JobNode {
    std::string name;
    Bytes pool_free = 0;
    std::vector<JobDevice> devices;
};

struct PlacedRank {
    unsigned group = 0;       // of JobSpec::groups
    std::size_t node = 0;     // of the nodes
    std::size_t device = 0;   // of JobNode::devices
    unsigned local_rank = 0;  // among those of its node
    double speed = 0.0;       // its part of its device's
    double share = 0.0;       // of each batch; those of all ranks add up to 1
};

/// The ranks of one group on one node: what one agent starts.
struct PlacedAgent {
    unsigned group = 0;
    std::size_t node = 0;
    std::vector<unsigned> ranks;  // ascending
};

struct JobPlan {
    std::size_t manager_node = 0;     // where rank 0 is
    std::vector<PlacedRank> ranks;    // by rank; those of a group follow each other
    std::vector<PlacedAgent> agents;  // by group, then by node
    std::vector<unsigned> servers;    // ranks that own a part of the parameters; none: allreduce
};

/// A group that does not fit.
struct JobMisfit {
    std::size_t group = 0;  // of JobSpec::groups
    unsigned placed = 0;    // of its ranks
    std::string text;       // one line: which group, and why
};

/// Gives each rank a device of its group's kind without a fault, whose name its constraint matches,
/// with room for the rank's part of the group's pool. Groups that fewer devices suit choose first;
/// one without ranks takes nothing.
///
/// Even: as many ranks of a group on each device, equal shares. By resource: the fastest free
/// device first, of equal ones that with most room; when all have a rank, where a rank computes
/// most; shares follow the speeds. Where ranks of two groups compete for memory it may refuse what
/// another order of them would fit.
///
/// On success nothing is returned; otherwise `plan` is untouched. Deterministic.
std::optional<JobMisfit> fit_job(const JobSpec& spec, const std::vector<JobNode>& nodes,
                                 JobPlan& plan);
/// Of the misfit the text alone.
std::optional<std::string> plan_job(const JobSpec& spec, const std::vector<JobNode>& nodes,
                                    JobPlan& plan);

/// `plan` with `left_out` missing and all others where they are: numbers, speeds, shares and
/// servers follow. `spec` has the groups as they are without it.
JobPlan plan_without(const JobSpec& spec, const std::vector<JobNode>& nodes, const JobPlan& plan,
                     unsigned left_out);

/// Whole samples of a batch for each share, by largest remainder, the lower rank first: as
/// FabricSampler cuts it.
std::vector<unsigned> cut_batch(const std::vector<double>& shares, unsigned batch);

}  // namespace fabricd
