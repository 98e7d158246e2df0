// Probe: what this machine's memory and cores can do, for the simulator's picture of it. Copies and
// words only: no collective is measured here, so that nothing is predicted from itself.

#pragma once

#include "emu/sim/topology.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace emu {

struct MachineLimits {
    int cores = 1;
    Seconds word = 0;         // until two cores, each storing a word, have seen the other's
    Seconds switch_cost = 0;  // giving the core to another process with sched_yield()
    CacheCurve cache;
};

struct ProbeOptions {
    fabricshm::Bytes least = 16 * fabricshm::kKiB;  // what a core touches
    fabricshm::Bytes most = 128 * fabricshm::kMiB;
    fabricshm::Duration sample = std::chrono::milliseconds(4);  // at least, per point
};

/// Starts one process per core (at most eight) and waits for them; takes a second or two. For
/// programs without other threads: it forks. kPeer when one of them ends badly.
fabricshm::Result<MachineLimits> probe_machine(const ProbeOptions& options);

/// A host of this machine's kind with `devices` ranks on its cores.
Topology machine_topology(const MachineLimits& limits, int devices);

}  // namespace emu
