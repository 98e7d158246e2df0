// The fabric's optimiser step over parameters that all ranks share, as a benchmark calls it.

#pragma once

#include <fabricshm/fabricshm.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/local_step.hpp"

namespace bench {

/// A set of shared parameters in the group's arena, of AdamW. By all ranks, made and destroyed
/// together.
class FabricStep {
  public:
    virtual ~FabricStep() = default;

    /// Of this process, in the order of the shapes.
    virtual std::vector<StepTensor> tensors() const = 0;
    virtual void run() = 0;
};

/// Shapes by tensor; none: one tensor of `elements`. `clip`: with the norm of the gradient, which
/// nothing exceeds. nullptr: the library has no such step.
std::unique_ptr<FabricStep> make_fabric_step(fabricshm_arena* arena, fabricshm_group* group,
                                             const std::vector<std::vector<std::int64_t>>& shapes,
                                             bool clip);

}  // namespace bench
