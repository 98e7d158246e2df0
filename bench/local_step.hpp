// What a rank does on its own after an allreduce of the gradients: AdamW with the library's own
// kernel, over parameters and state of its own.

#pragma once

#include <cstddef>
#include <cstdint>

namespace bench {

/// PyTorch's defaults: the same of all contenders.
struct AdamWOptions {
    double learning_rate = 1e-3;
    double weight_decay = 1e-2;
};

/// One tensor that is stepped, in this process.
struct StepTensor {
    float* gradient = nullptr;
    float* values = nullptr;
    float* first = nullptr;
    float* second = nullptr;
    std::size_t count = 0;
};

/// False in a build of a library that has no such kernel.
bool has_local_step() noexcept;

/// Moves `tensor` by its gradient, which is the sum of `world` ranks' and counts as their mean; the
/// `step`-th time, from 1 on. In one pass, as one job of the kernel.
void local_step(const StepTensor& tensor, int world, std::uint64_t step);

}  // namespace bench
