// The agent of a group: the process that starts its ranks, carries their output and reports their
// ends. docs/jobs.md.

#pragma once

#include <string>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

struct AgentOrder {
    unsigned number = 0;                 // in the job's plan
    std::string door;                    // a socket's path: where it waits for another manager
    fabricshm::Duration adopt_within{};  // how long, once it has lost one
};

/// Serves the task manager at the other end of `socket` until it is ended by it, or it dies: then
/// another one may come to the door, which is open before the agent is registered. The process has
/// no other work, and one thread. Returns its exit code. SIGTERM ends it and its ranks.
int run_group_agent(fabricshm::Fd socket, const AgentOrder& order);

}  // namespace fabricd
