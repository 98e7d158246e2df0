// EmulatedMachine: what a machine file or a preset says, and how it becomes the links of a job.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libfabricshm/shm/link_page.hpp"

namespace emu {

/// How long and how wide a stretch is. Latency in nanoseconds, bandwidth in bytes per second; 0: as
/// this machine.
struct Stretch {
    std::uint64_t read_latency_ns = 0;
    std::uint64_t write_latency_ns = 0;
    double read_bandwidth = 0;
    double write_bandwidth = 0;
    std::uint32_t knee_ranks = 0;          // beyond so many ranks at once ...
    std::uint32_t knee_loss_permille = 0;  // ... each costs so much of the bandwidth
    bool half_duplex = false;              // reads and writes share the bandwidth
};

/// A piece of memory of the pool. The pool is interleaved over all of them.
struct MemoryDevice {
    std::string name;
    Stretch own;
};

/// Joins two of: nodes, devices, and switches, which exist by being named here.
struct MachineLink {
    std::string name;
    std::string from;
    std::string to;
    Stretch own;
};

struct EmulatedMachine {
    std::string name;
    std::string source;    // where the figures come from, for people
    bool coherent = true;  // false: hosts do not see into each other's caches
    std::uint32_t slow_motion = 1;
    std::uint32_t tail_permille = 0;    // of the accesses are late, ...
    std::uint64_t tail_latency_ns = 0;  // ... by up to this
    std::uint32_t seed = 0;             // of which ones, and by how much; up to 65535
    std::vector<std::string> nodes;     // what ranks run on
    std::vector<MemoryDevice> devices;
    std::vector<MachineLink> links;
};

/// One line for a person on what is wrong; nothing when all is well.
using ErrorMessage = std::optional<std::string>;

/// Finds the shortest way (by read latency) from every node to every device and adds it up. Pure.
/// Complains of names that are missing or used twice, of devices that a node can't reach, and of
/// more than a link page holds.
ErrorMessage resolve(const EmulatedMachine& machine, fabricshm::LinkImage& links);

/// "640 ns, 10.1 GB/s": the figures of a node of the machine, slow motion taken out again.
std::string describe_links(const fabricshm::LinkImage& links);

}  // namespace emu
