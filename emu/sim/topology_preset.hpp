// Topologies made for a number of devices.

#pragma once

#include <string>
#include <vector>

#include "emu/sim/topology.hpp"

namespace emu {

/// Published figures of one kind of link and memory. docs/simulator.md names the sources.
struct LinkPreset {
    const char* name;
    const char* what;
    Seconds read_latency;  // of 64 bytes, from a device to the memory and back
    Rate read;             // of one device
    Rate write;
    Rate media;  // of one memory
};

const std::vector<LinkPreset>& link_presets();
/// nullptr when there is none of this name.
const LinkPreset* find_link_preset(const std::string& name);

struct TopologySpec {
    std::string shape = "star";  // star, tree, chain
    int devices = 8;
    int pools = 0;           // star: 0 is one per 8 devices; tree: per leaf switch, 0 is the same
    int per_host = 8;        // tree
    int hosts_per_leaf = 8;  // tree
    double oversubscription = 1;  // tree: links below a leaf switch / its uplink
    Placement placement = Placement::kInterleaved;
    LinkPreset link = link_presets()[0];
};

/// star:  devices and pools around one switch.
/// tree:  devices in hosts, hosts and pools at leaf switches, those at one spine. With placement
///        kDevice there are no pools: peers read each other's own memory.
/// chain: device behind device, each with memory of its own; at most 512.
/// kInvalid for other shapes, and numbers that make no topology.
fabricshm::Result<Topology> make_topology(const TopologySpec& spec);

}  // namespace emu
