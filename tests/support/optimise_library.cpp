// The optimiser kernels as a library that tests load from Python: to compare with what is written
// there.

#include <cstdint>

#include "kernels/optimise.hpp"

#define FABRIC_EXPORT extern "C" [[gnu::visibility("default")]]

/// Fields as in kernels::Hyper; the flags are 0 or 1.
struct OptimiseOptions {
    double learning_rate, beta1, beta2, epsilon, weight_decay, momentum, dampening;
    std::int32_t nesterov, maximize;
};

/// Step number `step`, from 1, of `count` elements with one f32 gradient. -1: `rule` is unknown, or
/// can't be run with these options.
FABRIC_EXPORT int fabric_test_optimise(int rule, const OptimiseOptions* options, std::uint64_t step,
                                       std::uint64_t count, const float* gradient,
                                       float* parameters, float* first, float* second,
                                       float* maximum) {
    if (rule < 0 || rule >= kernels::kRuleCount) return -1;
    kernels::Hyper hyper;
    hyper.learning_rate = options->learning_rate;
    hyper.beta1 = options->beta1;
    hyper.beta2 = options->beta2;
    hyper.epsilon = options->epsilon;
    hyper.weight_decay = options->weight_decay;
    hyper.momentum = options->momentum;
    hyper.dampening = options->dampening;
    hyper.nesterov = options->nesterov != 0;
    hyper.maximize = options->maximize != 0;
    kernels::OptimiseJob job;
    job.rule = static_cast<kernels::Rule>(rule);
    if (kernels::unusable_field(job.rule, hyper) != nullptr) return -1;
    job.factors = kernels::make_step_factors(job.rule, hyper, step);
    const void* const gradients[] = {gradient};
    job.gradients = gradients;
    job.gradient_count = 1;
    job.parameters = parameters;
    job.first = first;
    job.second = second;
    job.maximum = maximum;
    job.count = count;
    kernels::optimise(job);
    return 0;
}
