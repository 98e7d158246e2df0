// What this host offers as a pool: plain data, read from /sys and hwloc. Changes nothing.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/machine/dax_device.hpp"
#include "libfabricshm/machine/host_files.hpp"

namespace fabricshm {

/// Rated values from the firmware's table (HMAT), as seen from the nearest processors; 0: unknown.
struct MemoryRating {
    std::uint64_t read_latency_ns = 0;
    std::uint64_t write_latency_ns = 0;
    std::uint64_t read_bandwidth_mib = 0;  // MiB/s
    std::uint64_t write_bandwidth_mib = 0;
    std::vector<int> initiators;  // nodes of those processors
};

struct MemoryNode {
    int id = 0;
    std::string cpus;  // "0-7"; "" for a CPU-less node
    Bytes total = 0;
    Bytes available = 0;
    Bytes reserved_2mib_free = 0;
    Bytes reserved_1gib_free = 0;
    bool is_dax_backed = false;  // memory of a DAX device that the kmem driver has taken over
    std::optional<MemoryRating> rating;
};

struct DaxInfo {
    std::string name;    // "dax0.0"
    std::string path;    // "/dev/dax0.0"
    std::string driver;  // "device_dax", "kmem", or "": no driver
    Bytes bytes = 0;
    Bytes align = 0;
    int numa_node = -1;                   // of the nearest processors
    int target_node = -1;                 // the node that it would be with kmem
    bool is_usable = false;               // this process may open it, and its driver is device_dax
    std::optional<DaxContents> contents;  // of a usable one
    std::string uuid;                     // with a catalogue
    std::uint32_t device = 0;             // likewise: its place among `devices` of one pool, from 0
    std::uint32_t devices = 1;
    std::size_t arenas = 0;
};

struct CxlMemory {
    std::string name;  // "mem0"
    std::string serial;
    int numa_node = -1;
    Bytes ram = 0;
    Bytes pmem = 0;
};

struct CxlRegion {
    std::string name;  // "region0"
    std::uint64_t start = 0;
    Bytes bytes = 0;
    std::string mode;  // "ram", "pmem"
};

struct Processors {
    int packages = 0;
    int cores = 0;
    int threads = 0;
    Bytes last_level_cache = 0;  // of one of them
};

struct Discovery {
    Processors processors;
    Bytes available = 0;  // memory that a pool could take, control groups included
    Bytes transparent_huge_page_bytes = 0;
    std::vector<MemoryNode> nodes;
    std::vector<DaxInfo> dax;
    std::vector<CxlMemory> cxl_memories;
    std::vector<CxlRegion> cxl_regions;
    std::size_t cxl_decoders = 0;
};

/// Examines the host. DAX devices that this process may open are opened read-only to see what they
/// hold. A few milliseconds.
Discovery discover(const HostFiles& files);

}  // namespace fabricshm
