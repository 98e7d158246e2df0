// What memory allows an optimiser step: the same arrays read, the same ones written in place, and
// no arithmetic but an addition. Shares no code with kernels/.

#pragma once

#include <cstddef>

namespace bench {

/// values[i] += gradients[0] + gradients[1], for each of 2, 3 or 4 arrays. `count` is a multiple of
/// 16; any alignment. Pure and thread-safe.
void step_limit(const float* const gradients[2], float* const* values, int value_count,
                std::size_t count);

}  // namespace bench
