// Pages of a shared mapping on one NUMA node.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/machine/host_files.hpp"

namespace fabricshm {

/// Whether this process may have memory on the NUMA node `node`. Where the kernel knows of no nodes
/// there is node 0.
bool has_memory(int node) noexcept;

/// Gives [data, data + bytes), whole pages of a memory file that is not in use, new pages on
/// `node`. What was in them is gone. Moving the old ones instead would need them to be mapped by no
/// other process, and privileges. kInvalid: no such node; kNoMemory: it has no room, and the pages
/// are wherever they fit; kUnsupported: memory whose pages can't be exchanged (DAX).
Result<void> place_on_node(std::byte* data, Bytes bytes, int node) noexcept;

/// The NUMA nodes that have memory and processors, ascending: where ranks run.
std::vector<int> nodes_of_ranks(const HostFiles& files);

/// Pages of [data, data + bytes), whole pages of a memory file that has none there yet, will lie on
/// `nodes` in turn. The policy is the file's, so it holds whichever process touches a page first.
/// kInvalid: a node is not there; kDenied: a container forbids memory policies.
Result<void> spread_over(std::byte* data, Bytes bytes, std::span<const int> nodes) noexcept;

}  // namespace fabricshm
