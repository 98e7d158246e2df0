// Validate: allreduces measured on this machine next to what the simulator says of it.

#pragma once

#include <string>
#include <vector>

#include "emu/sim/report.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/call.hpp"

namespace emu {

struct ValidateOptions {
    std::vector<int> worlds = {2, 4};
    std::vector<fabricshm::Bytes> sizes;
    std::vector<fabricshm::Algorithm> algorithms;
    int rounds = 3;
    fabricshm::Duration sample = std::chrono::milliseconds(10);
};

/// In every round: the machine's limits, then every case, then the simulation of each case from
/// the limits of that round, never from a measured allreduce. (Rounds are kept apart since virtual
/// cores move: what holds in one second does not in the next.) One row per case, and among the
/// facts the median and the largest error by algorithm, world and size. Takes some seconds per
/// round; forks, so no other threads.
fabricshm::Result<Report> validate(const ValidateOptions& options);

}  // namespace emu
