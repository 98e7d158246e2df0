// What memory has to do for an optimiser step, and nothing else: gradients are read, parameters and
// both states are read and written in place, with additions alone. Shares no code with kernels/.

#pragma once

#include <cstddef>

namespace bench {

/// Each of the three `values` gets the sum of the `source_count` (1 to 4) gradients added. Any
/// alignment. `prefetch`: bytes that all arrays are asked for ahead; 0 leaves it to the processor.
/// Pure and thread-safe.
void step_pass(const float* const* gradients, int source_count, float* const values[3],
               std::size_t count, std::size_t prefetch);

}  // namespace bench
