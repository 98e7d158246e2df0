#include "bench/local_step.hpp"

// This file is also built with older libraries, which are measured next to this one.
#if __has_include("kernels/optimise.hpp")
#include "kernels/optimise.hpp"

namespace bench {

bool has_local_step() noexcept {
    return true;
}

void local_step(const StepTensor& tensor, int world, std::uint64_t step) {
    kernels::Hyper hyper;
    hyper.learning_rate = AdamWOptions{}.learning_rate;
    hyper.weight_decay = AdamWOptions{}.weight_decay;
    const void* const gradients[] = {tensor.gradient};
    kernels::OptimiseJob job;
    job.factors = kernels::make_step_factors(job.rule, hyper, step);
    job.gradients = gradients;
    job.gradient_count = 1;
    job.scale = 1.0F / static_cast<float>(world);
    job.parameters = tensor.values;
    job.first = tensor.first;
    job.second = tensor.second;
    job.count = tensor.count;
    job.streaming = true;
    kernels::optimise(job);
}

}  // namespace bench

#else

namespace bench {

bool has_local_step() noexcept {
    return false;
}

void local_step(const StepTensor& /*tensor*/, int /*world*/, std::uint64_t /*step*/) {}

}  // namespace bench

#endif
