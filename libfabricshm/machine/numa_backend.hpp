// The NUMA pool: arenas are memfds whose pages are bound to one node, as a rule the CPU-less node
// that a CXL memory expander appears as.

#pragma once

#include <memory>

#include "libfabricshm/machine/host_files.hpp"
#include "libfabricshm/machine/memfd_backend.hpp"

namespace fabricshm {

struct NumaOptions {
    int node = 0;
    Bytes capacity = 0;  // of all arenas together; 0: half of what the node has free now
    HugePages huge_pages = HugePages::kTransparent;
    Bytes reserved_page_bytes = 2 * kMiB;
    HostFiles files;
};

/// kNotFound when there is no such node with memory, kUnsupported without NUMA in the kernel or
/// reserved pages of that size, kNoMemory when `capacity` is more than the node has.
///
/// The binding belongs to the file, so that a page that is lost and touched again (there is no swap
/// for bound pool memory by default, but an operator may add some) comes back on the same node.
Result<std::unique_ptr<PoolBackend>> make_numa_backend(NumaOptions options);

/// Asks the kernel where the pages of [data, data + bytes) are (of many, thousands of them, spread
/// evenly) and fails with kMismatch when one is not on `node`.
Result<void> verify_node(void* data, Bytes bytes, int node);

}  // namespace fabricshm
