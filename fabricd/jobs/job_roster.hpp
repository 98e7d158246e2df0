// The ranks and agents of a job, as its task manager knows them.

#pragma once

#include <sys/types.h>

#include <vector>

#include "fabricd/jobs/child.hpp"
#include "fabricd/jobs/job_plan.hpp"
#include "jobs.pb.h"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

struct ManagedAgent {
    unsigned group = 0;
    std::size_t node = 0;
    Child child;
    bool is_alive = false;
    bool is_registered = false;
    bool is_adopted = false;  // another manager started it: no child of this process
    fabricshm::TimePoint register_by;
    std::vector<unsigned> ordered;  // ranks to start once it is registered
};

struct ManagedRank {
    std::size_t agent = 0;
    unsigned attempt = 0;
    unsigned restarts = 0;
    pid_t pid = 0;
    bool is_live = false;  // ordered, and not ended
    bool is_started = false;
    bool is_done = false;  // ended with 0
};

struct JobRoster {
    std::vector<ManagedAgent> agents;
    std::vector<ManagedRank> ranks;

    /// Gives each rank of the plan its agent. Agents keep their numbers; one whose group has moved
    /// or lost its ranks has nothing to do.
    void assign(const JobPlan& plan);
    bool any_live() const;
    bool any_agent() const;
    bool all_done() const;
    bool all_started() const;
    /// Those that have ranks to start.
    bool all_registered() const;
    bool has_ranks(std::size_t agent) const;
    /// The ranks that run no more with an agent that is gone, ascending.
    std::vector<unsigned> lose(std::size_t agent);

    /// Into a state with the plan of these ranks, and out of it.
    void put(jobs::v1::ManagerState& state) const;
    void take(const jobs::v1::ManagerState& state);
};

}  // namespace fabricd
