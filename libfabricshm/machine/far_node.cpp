#include "libfabricshm/machine/far_node.hpp"

#include <sstream>
#include <string>
#include <vector>

namespace fabricshm {

namespace {

// A node's row: its distance to every node, in the order of the nodes that are online.
std::vector<int> distances_of(const HostFiles& files, int node) {
    const std::string path = "/sys/devices/system/node/node" + std::to_string(node) + "/distance";
    std::istringstream words(files.text(path).value_or(""));
    std::vector<int> row;
    for (int distance = 0; words >> distance;) row.push_back(distance);
    return row;
}

}  // namespace

std::optional<FarNode> find_far_node(const Discovery& discovery, const HostFiles& files) {
    std::optional<FarNode> best;
    for (const MemoryNode& near : discovery.nodes) {
        if (near.cpus.empty() || near.total == 0) continue;
        const std::vector<int> row = distances_of(files, near.id);
        for (std::size_t i = 0; i < discovery.nodes.size() && i < row.size(); ++i) {
            const MemoryNode& far = discovery.nodes[i];
            if (far.id == near.id || far.total == 0) continue;
            const bool farther = !best || row[i] > best->distance ||
                                 (row[i] == best->distance && far.id > best->node);
            if (farther) best = FarNode{far.id, near.id, row[i]};
        }
    }
    return best;
}

}  // namespace fabricshm
