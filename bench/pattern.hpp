// Values that make a wrong result visible: small whole numbers, so that sums are exact in float.

#pragma once

#include <string>
#include <vector>

#include "bench/driver.hpp"

namespace bench {

/// Fills the input of `rank` (for broadcast: of the root, while the others get something wrong).
void fill(Collective collective, int rank, const Buffers& buffers);

/// Empty when every element of the output is right, else the first that is not.
/// Costs a pass over the output; called outside of what is timed.
std::string verify(Collective collective, int rank, int world, const Buffers& buffers);

/// Fills the gradients of `rank`; and empty when parameters and first moments are what one step of
/// AdamW by all ranks makes of zeros with them.
void fill_step(int rank, const std::vector<StepTensor>& tensors);
std::string verify_step(int world, const std::vector<StepTensor>& tensors);

}  // namespace bench
