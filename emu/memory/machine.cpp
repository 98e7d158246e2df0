#include "emu/memory/machine.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "emu/memory/figures.hpp"

namespace emu {

namespace {

using fabricshm::kLinkChannels;
using fabricshm::kLinkHops;
using fabricshm::kLinkNodes;
using fabricshm::LinkChannel;
using fabricshm::LinkImage;
using fabricshm::LinkRoute;

// A way through the links: their indices, and how long they are together.
// Both latencies are summed, but the way is chosen by that of reading.
struct Way {
    std::uint64_t read_latency_ns = 0;
    std::uint64_t write_latency_ns = 0;
    std::vector<std::size_t> links;
};

using Ways = std::map<std::string, Way>;

// Dijkstra's algorithm without a queue: machines have a handful of links.
Ways ways_from(const EmulatedMachine& machine, const std::string& start) {
    Ways ways{{start, {}}};
    // Ends, since a way is only replaced by a shorter one, and there are finitely many.
    for (bool changed = true; changed;) {
        changed = false;
        for (std::size_t i = 0; i < machine.links.size(); ++i) {
            const MachineLink& link = machine.links[i];
            for (const auto& [here, there] :
                 {std::pair{link.from, link.to}, {link.to, link.from}}) {
                const auto known = ways.find(here);
                if (known == ways.end()) continue;
                Way longer = known->second;
                longer.read_latency_ns += link.own.read_latency_ns;
                longer.write_latency_ns += link.own.write_latency_ns;
                longer.links.push_back(i);
                const auto old = ways.find(there);
                if (old != ways.end() && old->second.read_latency_ns <= longer.read_latency_ns) {
                    continue;
                }
                ways[there] = longer;
                changed = true;
            }
        }
    }
    return ways;
}

// Nanoseconds per byte, which is what a rank counts; 0 costs nothing.
double cost(double bandwidth, std::uint32_t slow_motion) {
    return bandwidth == 0 ? 0 : 1e9 / bandwidth * slow_motion;
}

void set_name(char (&field)[fabricshm::kLinkNameBytes], const std::string& name) {
    std::memset(field, 0, sizeof field);
    name.copy(field, sizeof field - 1);
}

// Builds an image. Links come first among the channels, then devices.
class Resolver {
  public:
    Resolver(const EmulatedMachine& machine, LinkImage& links) : machine_(machine), links_(links) {}

    ErrorMessage run() {
        if (auto bad = check_names()) return bad;
        // Zeroed first: the image is compared and copied as bytes.
        links_ = LinkImage{};
        set_name(links_.name, machine_.name);
        links_.node_count = static_cast<std::uint32_t>(machine_.nodes.size());
        links_.slow_motion = machine_.slow_motion;
        links_.incoherent = machine_.coherent ? 0 : 1;
        links_.seed = static_cast<std::uint16_t>(machine_.seed);
        for (const MachineLink& link : machine_.links) add_channel(link.name, link.own);
        for (const MemoryDevice& device : machine_.devices) add_channel(device.name, device.own);
        for (std::uint32_t node = 0; node < links_.node_count; ++node) {
            if (auto bad = add_route(node)) return bad;
        }
        // The page's own rules, for all of it at once; in words, since they know no names.
        if (fabricshm::check_links(links_).ok()) return {};
        return machine_.name + ": a latency is above 1 s, a bandwidth below 1 MB/s, a loss above " +
               "100 %, or a name has other characters than letters, digits, - and _";
    }

  private:
    ErrorMessage check_names() const {
        std::set<std::string> seen;
        // One set for nodes, devices and links: error messages name things by their names alone.
        // Switches have none of their own to clash.
        const auto taken = [&seen](const std::string& name) { return !seen.insert(name).second; };
        const auto twice = [this](const std::string& name) {
            return machine_.name + ": the name \"" + name + "\" is used twice";
        };
        for (const auto& node : machine_.nodes) {
            if (taken(node)) return twice(node);
        }
        for (const auto& device : machine_.devices) {
            if (taken(device.name)) return twice(device.name);
        }
        for (const auto& link : machine_.links) {
            if (taken(link.name)) return twice(link.name);
        }
        if (machine_.nodes.empty() || machine_.devices.empty()) {
            return machine_.name + ": a machine has at least one node and one device";
        }
        const std::size_t channels = machine_.links.size() + machine_.devices.size();
        if (machine_.nodes.size() > kLinkNodes || channels > kLinkChannels) {
            return machine_.name + ": more than " + std::to_string(kLinkNodes) +
                   " nodes, or than " + std::to_string(kLinkChannels) + " links and devices";
        }
        return {};
    }

    void add_channel(const std::string& name, const Stretch& own) {
        LinkChannel& channel = links_.channels[links_.channel_count++];
        set_name(channel.name, name);
        channel.read_ns_per_byte = cost(own.read_bandwidth, machine_.slow_motion);
        channel.write_ns_per_byte = cost(own.write_bandwidth, machine_.slow_motion);
        channel.half_duplex = own.half_duplex ? 1 : 0;
        channel.knee_ranks = own.knee_ranks;
        channel.knee_loss_permille = own.knee_loss_permille;
    }

    ErrorMessage add_route(std::uint32_t node) {
        const Ways ways = ways_from(machine_, machine_.nodes[node]);
        const std::size_t devices = machine_.devices.size();
        // By channel, so that a stretch that two devices' ways share is one hop with both shares.
        std::map<std::size_t, std::uint32_t> shares;  // channel -> permille
        LinkRoute& route = links_.routes[node];
        for (std::size_t i = 0; i < devices; ++i) {
            // Each device holds an equal part of every buffer.
            const MemoryDevice& device = machine_.devices[i];
            const auto way = ways.find(device.name);
            if (way == ways.end()) {
                return machine_.name + ": no link leads from node \"" + machine_.nodes[node] +
                       "\" to device \"" + device.name + "\"";
            }
            // The remainder goes to the last one, so that the shares make a whole.
            const auto even = static_cast<std::uint32_t>(1000 / devices);
            const std::uint32_t share =
                i + 1 < devices ? even : 1000 - even * static_cast<std::uint32_t>(devices - 1);
            for (const std::size_t link : way->second.links) shares[link] += share;
            shares[machine_.links.size() + i] += share;
            lengthen(route, way->second, device.own);
        }
        for (const auto& [channel, share] : shares) {
            route.hops[route.hop_count++] = {static_cast<std::uint16_t>(channel),
                                             static_cast<std::uint16_t>(share)};
            links_.channels[channel].nodes |= 1u << node;
        }
        return {};
    }

    // An interleaved access is over when the farthest device has answered.
    void lengthen(LinkRoute& route, const Way& way, const Stretch& device) const {
        // Cut at what the page can hold; check_links() refuses far less.
        const auto slow = [this](std::uint64_t latency) {
            return static_cast<std::uint32_t>(
                std::min<std::uint64_t>(latency * machine_.slow_motion, ~std::uint32_t{0}));
        };
        route.read_latency_ns =
            std::max(route.read_latency_ns, slow(way.read_latency_ns + device.read_latency_ns));
        route.write_latency_ns =
            std::max(route.write_latency_ns, slow(way.write_latency_ns + device.write_latency_ns));
        route.tail_permille = static_cast<std::uint16_t>(machine_.tail_permille);
        route.tail_latency_ns = slow(machine_.tail_latency_ns);
    }

    const EmulatedMachine& machine_;
    LinkImage& links_;
};

static_assert(kLinkHops >= kLinkChannels, "a way may use every channel");

}  // namespace

ErrorMessage resolve(const EmulatedMachine& machine, LinkImage& links) {
    return Resolver(machine, links).run();
}

std::string describe_links(const LinkImage& links) {
    const Figures rated = rated_figures(links, 0);
    const auto wide = [](double bytes_per_second) {
        char text[48];
        std::snprintf(text, sizeof text, "%.3g GB/s", bytes_per_second / 1e9);
        return bytes_per_second == 0 ? std::string("bandwidth of this machine") : std::string(text);
    };
    char text[160];
    std::snprintf(text, sizeof text, "read %.0f ns, %s; write %.0f ns, %s", rated.read_latency_ns,
                  wide(rated.read_bandwidth).c_str(), rated.write_latency_ns,
                  wide(rated.write_bandwidth).c_str());
    std::string all = text;
    if (links.node_count > 1) all += "; " + std::to_string(links.node_count) + " nodes";
    if (links.routes[0].tail_permille != 0) {
        std::snprintf(text, sizeof text, "; %.1f %% of the accesses up to %u ns later",
                      links.routes[0].tail_permille / 10.0,
                      links.routes[0].tail_latency_ns / links.slow_motion);
        all += text;
    }
    if (links.incoherent != 0) all += "; hosts not coherent";
    if (links.slow_motion > 1) all += "; slow motion " + std::to_string(links.slow_motion) + "x";
    return all;
}

}  // namespace emu
