// A file of memory without a name, as pages and listings are passed between processes.

#pragma once

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricshm {

/// An empty one that may be sealed; `name` is shown in /proc. kNoMemory or kSystem, with `step`.
Result<Fd> open_memory_file(const char* name, const char* step);

}  // namespace fabricshm
