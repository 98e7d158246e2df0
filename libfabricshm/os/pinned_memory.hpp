// Memory that a ring of io_uring keeps pinned, in pieces: DiskReader's and DiskWriter's.

#pragma once

#include <cstddef>
#include <span>

#include "libfabricshm/base/units.hpp"

struct io_uring;

namespace fabricshm {

/// The kernel pins at most this much at once (io_uring_register(2)): the n-th piece is the ring's
/// n-th buffer.
inline constexpr Bytes kPinBytes = kGiB;

/// False: RLIMIT_MEMLOCK may be below it. Then the kernel pins each access by itself.
bool pin_memory(io_uring& ring, std::span<std::byte> memory);

}  // namespace fabricshm
