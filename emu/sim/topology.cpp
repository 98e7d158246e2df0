#include "emu/sim/topology.hpp"

namespace emu {

namespace {

// In the order of nodes, which makes ranks: reordering a file reorders ranks.
std::vector<int> nodes_of(const Topology& topology, NodeKind kind) {
    std::vector<int> found;
    for (std::size_t i = 0; i < topology.nodes.size(); ++i) {
        if (topology.nodes[i].kind == kind) found.push_back(static_cast<int>(i));
    }
    return found;
}

std::string node_error_message(const Topology& topology, std::size_t index) {
    const Node& node = topology.nodes[index];
    const bool root = index == 0;
    if (root != (node.parent < 0)) return node.name + ": exactly the first node has no parent";
    if (!root && static_cast<std::size_t>(node.parent) >= index) {
        return node.name + ": its parent has to come before it";
    }
    // Written so that NaN is refused. 1e18 is an exabyte per second, and thirty thousand million
    // years.
    for (const double value : {node.up, node.down, node.latency, node.inside, node.read, node.write,
                               node.window_bytes, node.media, node.media_latency}) {
        if (!(value >= 0) || value > 1e18) return node.name + ": a value is negative or too large";
    }
    // 0 means "does not limit" elsewhere; an engine without a limit would read in no time.
    if (node.kind == NodeKind::kDevice && !(node.read > 0 && node.write > 0)) {
        return node.name + ": a device needs read and write rates";
    }
    if (node.kind == NodeKind::kDevice && !(node.speed > 0)) {
        return node.name + ": speed has to be above 0";
    }
    return "";
}

}  // namespace

std::vector<int> Topology::devices() const {
    return nodes_of(*this, NodeKind::kDevice);
}

std::vector<int> Topology::homes() const {
    // With memory of their own, devices are homes and pools hold nothing.
    return placement == Placement::kDevice ? devices() : nodes_of(*this, NodeKind::kPool);
}

std::string Topology::error_message() const {
    if (nodes.empty()) return "no nodes";
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        std::string found = node_error_message(*this, i);
        if (!found.empty()) return found;
    }
    const std::size_t count = devices().size();
    if (count < 2 || count > 8192) {
        return "it has " + std::to_string(count) + " devices; 2 to 8192 can be simulated";
    }
    if (homes().empty()) return "no pool holds the buffers (placement)";
    if (lines_in_flight < 1) return "lines_in_flight: at least 1";
    return "";
}

}  // namespace emu
