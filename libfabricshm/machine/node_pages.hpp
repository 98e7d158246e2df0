// Pages of a shared mapping on one NUMA node.

#pragma once

#include <cstddef>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricshm {

/// Whether this process may have memory on the NUMA node `node`. Where the kernel knows of no nodes
/// there is node 0.
bool has_memory(int node) noexcept;

/// Gives [data, data + bytes), whole pages of a memory file that nobody uses, new pages on `node`.
/// What was in them is gone. Moving the old ones instead would need them to be mapped by nobody
/// else, and privileges. kInvalid: no such node; kNoMemory: it has no room, and the pages are
/// wherever they fit; kUnsupported: memory whose pages can't be exchanged (DAX).
Result<void> place_on_node(std::byte* data, Bytes bytes, int node) noexcept;

}  // namespace fabricshm
