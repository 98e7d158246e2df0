// Topology: devices, hosts, switches and pools as a tree, and what each of its links and memories
// can do. Written by hand in TOML (topology_file.hpp) or made for a size (topology_preset.hpp).
//
// A tree: between two nodes there is one way. Several parallel links to the same switch are one
// link with their sum (a fat tree). What a network does beyond that (several ways, congestion
// inside a switch, retries) is not modelled.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emu/sim/event_queue.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace emu {

enum class NodeKind : std::uint8_t { kSwitch, kHost, kDevice, kPool };

/// Bytes per second. 1e9 is 1 GB/s.
using Rate = double;

/// One node and its link to the parent. Rates of 0 mean "does not limit".
struct Node {
    std::string name;  // "gpu[17]"
    NodeKind kind = NodeKind::kSwitch;
    int parent = -1;  // index; -1: the root

    Rate up = 0;          // of the link, towards the root
    Rate down = 0;        // and away from it
    Seconds latency = 0;  // one way

    Rate inside = 0;  // switch, host: everything that passes through it

    // Device: how fast its engine reads and writes, how much it keeps in flight (bytes waiting for
    // a read's latency; 0: enough), and how fast it computes, relative to others.
    Rate read = 0;
    Rate write = 0;
    double window_bytes = 0;
    double speed = 1;

    // Pool, or device with memory of its own.
    Rate media = 0;
    Seconds media_latency = 0;

    int cores = 0;  // host: processors that its devices share; 0: each has its own
};

/// Where the ranks' buffers are.
enum class Placement : std::uint8_t {
    kInterleaved,  // every buffer over all pools, in equal parts
    kHome,         // rank r's buffers in pool r mod pools
    kDevice,       // in the memory of the rank's own device
};

/// How far a core's caches reach, on a host whose memory is coherent: seconds per byte by how much
/// a core touches in one operation. Empty: no caches, every touch goes over links.
struct CacheCurve {
    struct Point {
        double footprint = 0;  // bytes that a core touches
        double kept = 0;       // seconds per byte of what only this core touches
        double handed = 0;     // seconds per byte of reading what another core has written
        double given = 0;      // seconds per byte of writing what another core has read
        double streamed = 0;   // seconds per byte, stores past the cache
    };
    std::vector<Point> points;  // by footprint, rising
};

struct Topology {
    std::string name;
    std::vector<Node> nodes;  // parents come before children; the first is the root
    Placement placement = Placement::kInterleaved;
    int lines_in_flight = 8;   // words of other ranks that a waiting rank reads at once
    Seconds line_latency = 0;  // to read a word that another rank wrote; 0: follows from the links
    Seconds switch_cost = 0;   // to give a core to another rank, where ranks share cores
    CacheCurve cache;

    /// The devices in the order of nodes: rank r is the r-th.
    std::vector<int> devices() const;
    /// Nodes that hold buffers under the placement.
    std::vector<int> homes() const;
    /// What is wrong with it, as one line for a person; empty when nothing is.
    std::string error_message() const;
};

}  // namespace emu
