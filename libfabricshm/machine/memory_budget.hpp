// How much memory this process may still commit, and in which page sizes.

#pragma once

#include <optional>
#include <string>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/machine/host_files.hpp"

namespace fabricshm {

/// What can be committed now without the out-of-memory killer: MemAvailable, and less where a
/// control group (v1 or v2, any level above the process) leaves less. Reads a dozen small files.
/// `process` is a folder of /proc: a number, or the process that asks.
Bytes available_memory(const HostFiles& files, const std::string& process = "self");

/// The memory limit of a control group.
struct MemoryLimit {
    std::string folder;  // "/sys/fs/cgroup/system.slice/fabricd.service"; "": no limit
    Bytes bytes = ~Bytes{0};
};

/// The smallest limit of the control groups that a process is in; nothing where none of them can be
/// seen, as in some containers.
std::optional<MemoryLimit> tightest_memory_limit(const HostFiles& files,
                                                 const std::string& process = "self");

/// A field of /proc/meminfo, such as "SwapTotal"; nothing when it is not there.
std::optional<Bytes> memory_info(const HostFiles& files, const std::string& field);

/// MemFree of one NUMA node plus what its page cache would give back; nothing without such a node.
std::optional<Bytes> available_memory_of_node(const HostFiles& files, int node);

/// MemTotal of one node, likewise.
std::optional<Bytes> total_memory_of_node(const HostFiles& files, int node);

/// The page size that shared memory gets after madvise(MADV_HUGEPAGE); 0 when the kernel has them
/// switched off (transparent_hugepage/shmem_enabled is never or deny).
Bytes transparent_huge_page_bytes(const HostFiles& files);

}  // namespace fabricshm
