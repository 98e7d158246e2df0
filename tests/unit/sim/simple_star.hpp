// A star whose only limits are the ones that a test sets.

#pragma once

#include "emu/sim/collective_run.hpp"
#include "libfabricshm/collective/call.hpp"

namespace sim_test {

/// `world` devices and one pool at a switch; nothing limits but engines of 1000 TB/s.
inline emu::Topology simple_star(int world, emu::Placement placement) {
    emu::Topology topology;
    topology.placement = placement;
    topology.lines_in_flight = 1 << 20;
    emu::Node root;
    root.name = "switch[0]";
    topology.nodes.push_back(root);
    for (int i = 0; i <= world; ++i) {
        emu::Node node;
        node.name = i == world ? "pool[0]" : "device[" + std::to_string(i) + "]";
        node.kind = i == world ? emu::NodeKind::kPool : emu::NodeKind::kDevice;
        node.parent = 0;
        node.read = node.write = 1e15;
        topology.nodes.push_back(node);
    }
    return topology;
}

inline fabricshm::AllreduceCall call_of(int world, fabricshm::Bytes bytes,
                                        fabricshm::Algorithm algorithm) {
    fabricshm::AllreduceCall call;
    call.world = world;
    call.bytes = bytes;
    call.algorithm = algorithm;
    return call;
}

/// A tuning without claims, so that every rank has its part.
inline fabricshm::Tuning fixed_parts() {
    fabricshm::Tuning tuning;
    tuning.claim_from = ~fabricshm::Bytes{0};
    return tuning;
}

}  // namespace sim_test
