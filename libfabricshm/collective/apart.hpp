// Apart: whether the buffers that the ranks of an operation showed each other keep out of each
// other's way. A pure function of what every rank knows alike, so all ranks give the same verdict.

#pragma once

#include <span>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricshm {

/// Where the buffers of one rank lie, in bytes from the arena's start. An empty buffer, or one
/// outside the arena, has no bytes here.
struct BufferPlace {
    Bytes input = 0;
    Bytes input_bytes = 0;
    Bytes output = 0;
    Bytes output_bytes = 0;
};

/// Outputs of different ranks must not overlap each other, nor the input of another rank: which
/// bytes came last would be left to chance. kInvalid when some do. What one rank's own two buffers
/// may do is check_call()'s business. O(N log N).
Result<void> check_apart(std::span<const BufferPlace> ranks);

/// What FABRICSHM_SHARED_OUTPUT asks for instead: kInvalid unless all ranks have the same output,
/// with the same bytes. O(N).
Result<void> check_shared(std::span<const BufferPlace> ranks);

}  // namespace fabricshm
