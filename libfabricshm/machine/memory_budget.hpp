// How much memory this process may still commit, and in which page sizes.

#pragma once

#include <optional>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/machine/host_files.hpp"

namespace fabricshm {

/// What can be committed now without the out-of-memory killer: MemAvailable, and less where a
/// control group (v1 or v2, any level above this process) leaves less. Reads a dozen small files.
Bytes available_memory(const HostFiles& files);

/// MemFree of one NUMA node plus what its page cache would give back; nothing without such a node.
std::optional<Bytes> available_memory_of_node(const HostFiles& files, int node);

/// MemTotal of one node, likewise.
std::optional<Bytes> total_memory_of_node(const HostFiles& files, int node);

/// The page size that shared memory gets after madvise(MADV_HUGEPAGE); 0 when the kernel has them
/// switched off (transparent_hugepage/shmem_enabled is never or deny).
Bytes transparent_huge_page_bytes(const HostFiles& files);

}  // namespace fabricshm
