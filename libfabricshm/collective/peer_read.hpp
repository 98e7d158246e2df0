// PeerRead: how long it takes to read what another rank wrote. What stage S211 is fed with.

#pragma once

#include <cstddef>
#include <cstdint>

#include "libfabricshm/base/units.hpp"

namespace fabricshm {

/// One timed read.
struct PeerRead {
    Bytes bytes = 0;
    std::int64_t ns = 0;          // for all of them, one after the other
    std::int64_t latency_ns = 0;  // of one line, where each load waits for the one before
};

/// Reads `bytes` (at least 8 KiB) at `place`, past the caches: what is there is dropped from them
/// first, so that it is the memory that answers and not this processor's copy of the last time. A
/// thread that uses the lines meanwhile misses them once. Some 10 us for 32 KiB of ordinary memory.
PeerRead time_read(const std::byte* place, Bytes bytes) noexcept;

}  // namespace fabricshm
