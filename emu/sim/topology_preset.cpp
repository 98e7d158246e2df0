#include "emu/sim/topology_preset.hpp"

#include <algorithm>

namespace emu {

namespace {

constexpr Seconds kNano = 1e-9;
constexpr Rate kGiga = 1e9;
// Of the latency from a device to the memory and back, what the memory itself takes.
constexpr Seconds kMediaLatency = 100 * kNano;
constexpr int kLongestChain = 512;

std::string indexed(const char* name, int index) {
    return std::string(name) + "[" + std::to_string(index) + "]";
}

// Makes nodes with the figures of one link preset.
class Maker {
  public:
    // `hops` between a device and a pool, one way.
    Maker(Topology& topology, const TopologySpec& spec, int hops)
        : topology_(topology), spec_(spec) {
        // The way there and back over all hops, and the memory, together take the preset's latency.
        const Seconds media = std::min(kMediaLatency, spec.link.read_latency);
        hop_ = (spec.link.read_latency - media) / 2 / hops;
        media_ = media;
    }

    int add(Node node) {
        topology_.nodes.push_back(std::move(node));
        return static_cast<int>(topology_.nodes.size()) - 1;
    }

    int add_switch(const std::string& name, int parent, Rate uplink) {
        Node node;
        node.name = name;
        node.parent = parent;
        node.up = node.down = uplink;
        node.latency = parent < 0 ? 0 : hop_;
        return add(node);
    }

    int add_host(int index, int parent, Rate uplink) {
        const int host = add_switch(indexed("host", index), parent, uplink);
        topology_.nodes[static_cast<std::size_t>(host)].kind = NodeKind::kHost;
        return host;
    }

    int add_device(int index, int parent) {
        Node node;
        node.name = indexed("device", index);
        node.kind = NodeKind::kDevice;
        node.parent = parent;
        // A link carries what its device can read; upwards the larger of both, since peers read a
        // device's own memory through it.
        node.down = spec_.link.read;
        node.up = std::max(spec_.link.read, spec_.link.write);
        node.latency = parent < 0 ? 0 : hop_;
        node.read = spec_.link.read;
        node.write = spec_.link.write;
        // Devices with memory of their own serve it as a pool would.
        if (spec_.placement == Placement::kDevice) {
            node.media = spec_.link.media;
            node.media_latency = media_;
        }
        return add(node);
    }

    int add_pool(int index, int parent) {
        Node node;
        node.name = indexed("pool", index);
        node.kind = NodeKind::kPool;
        node.parent = parent;
        // A memory's link is no narrower than the memory.
        node.up = node.down = spec_.link.media;
        node.media = spec_.link.media;
        node.latency = hop_;
        node.media_latency = media_;
        return add(node);
    }

  private:
    Topology& topology_;
    const TopologySpec& spec_;
    Seconds hop_ = 0;
    Seconds media_ = 0;
};

int pools_for(int wanted, int devices) {
    return wanted > 0 ? wanted : std::max(1, devices / 8);
}

void make_star(Topology& topology, const TopologySpec& spec) {
    // Device to switch and switch to pool.
    Maker maker(topology, spec, 2);
    const int root = maker.add_switch("switch", -1, 0);
    for (int i = 0; i < spec.devices; ++i) maker.add_device(i, root);
    if (spec.placement == Placement::kDevice) return;
    // Here for all devices; in a tree for those of a leaf, so that its uplink is not needed for
    // near memory.
    const int pools = pools_for(spec.pools, spec.devices);
    for (int i = 0; i < pools; ++i) maker.add_pool(i, root);
}

void make_tree(Topology& topology, const TopologySpec& spec) {
    // Device to host, host to leaf, pool to leaf. Across the spine it takes two more.
    Maker maker(topology, spec, 3);
    const int root = maker.add_switch("spine", -1, 0);
    const int per_leaf = spec.per_host * spec.hosts_per_leaf;
    int host_count = 0;
    int pool_count = 0;
    int made = 0;
    for (int leaf = 0; made < spec.devices; ++leaf) {
        const int here = std::min(per_leaf, spec.devices - made);
        // An uplink as wide as all below it is not a bottleneck; the oversubscription divides it.
        const Rate below = here * spec.link.read;
        const int at_leaf =
            maker.add_switch(indexed("leaf", leaf), root, below / spec.oversubscription);
        for (int first = 0; first < here; first += spec.per_host) {
            const int in_host = std::min(spec.per_host, here - first);
            const int host = maker.add_host(host_count++, at_leaf, in_host * spec.link.read);
            for (int i = 0; i < in_host; ++i) maker.add_device(made++, host);
        }
        const int pools = spec.placement == Placement::kDevice ? 0 : pools_for(spec.pools, here);
        for (int i = 0; i < pools; ++i) maker.add_pool(pool_count++, at_leaf);
    }
}

void make_chain(Topology& topology, const TopologySpec& spec) {
    // From the end of a chain to its neighbour is one hop: that one takes the preset's latency.
    Maker maker(topology, spec, 1);
    int parent = -1;
    for (int i = 0; i < spec.devices; ++i) parent = maker.add_device(i, parent);
}

}  // namespace

const std::vector<LinkPreset>& link_presets() {
    static const std::vector<LinkPreset> presets = {
        {"cxl_switch", "CXL memory behind a switch, read by a processor", 750 * kNano, 46 * kGiga,
         33 * kGiga, 46 * kGiga},
        {"cxl_switch_gpu", "the same, read by a GPU", 750 * kNano, 26 * kGiga, 26 * kGiga,
         46 * kGiga},
        {"cxl_box", "a box of CXL memory", 596 * kNano, 60 * kGiga, 60 * kGiga, 60 * kGiga},
        {"mhd", "a multi-headed CXL memory of the first generation", 640 * kNano, 10.1 * kGiga,
         10.1 * kGiga, 10.1 * kGiga},
        {"cxl_expander", "a CXL card in the host", 220 * kNano, 64 * kGiga, 64 * kGiga, 64 * kGiga},
        {"numa", "the memory of another socket", 200 * kNano, 60 * kGiga, 60 * kGiga, 120 * kGiga},
    };
    return presets;
}

const LinkPreset* find_link_preset(const std::string& name) {
    for (const LinkPreset& preset : link_presets()) {
        if (name == preset.name) return &preset;
    }
    return nullptr;
}

fabricshm::Result<Topology> make_topology(const TopologySpec& spec) {
    const fabricshm::Error out_of_range{fabricshm::Errc::kInvalid, 0, "topology: out of range"};
    const bool counts = spec.devices >= 2 && spec.devices <= 8192 && spec.pools >= 0 &&
                        spec.pools <= 8192 && spec.per_host >= 1 && spec.hosts_per_leaf >= 1;
    if (!counts || !(spec.oversubscription > 0)) return out_of_range;
    Topology topology;
    topology.name = spec.shape + " of " + std::to_string(spec.devices) + ", " + spec.link.name;
    topology.placement = spec.placement;
    if (spec.shape == "star") {
        make_star(topology, spec);
    } else if (spec.shape == "tree") {
        make_tree(topology, spec);
    } else if (spec.shape == "chain") {
        // A chain's longest way grows with its length, and so does what every route costs here.
        if (spec.devices > kLongestChain) return out_of_range;
        // There is no place for pools in a chain.
        TopologySpec own_memory = spec;
        own_memory.placement = topology.placement = Placement::kDevice;
        make_chain(topology, own_memory);
    } else {
        return fabricshm::Error{fabricshm::Errc::kInvalid, 0, "topology: star, tree or chain"};
    }
    return topology;
}

}  // namespace emu
