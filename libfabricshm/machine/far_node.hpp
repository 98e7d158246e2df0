// The far node: where a pool that stands in for CXL memory is best put on a server with several
// memory nodes.

#pragma once

#include <optional>

#include "libfabricshm/machine/discovery.hpp"
#include "libfabricshm/machine/host_files.hpp"

namespace fabricshm {

struct FarNode {
    int node = 0;       // for the pool
    int near_node = 0;  // whose processors should run the ranks
    int distance = 0;   // between the two, as the firmware rates it; 10 is a node's own memory
};

/// The two nodes with memory that are farthest apart, the near one with processors; of equals the
/// pool gets the node with the highest number. Nothing on a machine with one memory node.
std::optional<FarNode> find_far_node(const Discovery& discovery, const HostFiles& files);

}  // namespace fabricshm
