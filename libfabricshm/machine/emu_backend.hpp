// The emulated pool: arenas are memfds in the machine's ordinary memory; on a machine with several
// NUMA nodes that have processors their pages lie on these in turn.

#pragma once

#include <memory>

#include "libfabricshm/machine/host_files.hpp"
#include "libfabricshm/machine/memfd_backend.hpp"

namespace fabricshm {

struct EmuOptions {
    Bytes capacity = 0;  // of all arenas together; 0: half of what is available now
    HugePages huge_pages = HugePages::kTransparent;
    Bytes reserved_page_bytes = 2 * kMiB;  // of kReserved
    HostFiles files;                       // where /sys and /proc are
};

/// kNoMemory when `capacity` is more than the machine (or this process's control group) has;
/// kUnsupported when there are no reserved pages of that size.
Result<std::unique_ptr<PoolBackend>> make_emu_backend(EmuOptions options);

}  // namespace fabricshm
