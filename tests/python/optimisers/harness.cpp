// The optimiser steps as C functions, for steps_test.py.

#include <cstring>

#include "kernels/optimise.hpp"

namespace {

kernels::Hyper hyper_of(const double* values) noexcept {
    kernels::Hyper hyper;
    hyper.learning_rate = values[0];
    hyper.beta1 = values[1];
    hyper.beta2 = values[2];
    hyper.epsilon = values[3];
    hyper.weight_decay = values[4];
    hyper.momentum = values[5];
    hyper.dampening = values[6];
    hyper.nesterov = values[7] != 0;
    hyper.maximize = values[8] != 0;
    return hyper;
}

}  // namespace

// One step of one gradient; `hyper` are the nine values above, `arrays` are parameters, first and
// second moment. Returns 0, or -1 for a rule that does not exist.
extern "C" __attribute__((visibility("default"))) int step(const char* rule, const double* hyper,
                                                           unsigned long number,
                                                           const void* gradient,
                                                           float* const* arrays,
                                                           unsigned long count) {
    for (const kernels::RuleRow& row : kernels::kRuleRows) {
        if (std::strcmp(row.name, rule) != 0) continue;
        kernels::OptimiseJob job;
        job.rule = row.rule;
        job.factors = kernels::make_step_factors(row.rule, hyper_of(hyper), number);
        job.gradients = &gradient;
        job.gradient_count = 1;
        job.parameters = arrays[0];
        job.first = arrays[1];
        job.second = arrays[2];
        job.count = count;
        kernels::optimise(job);
        return 0;
    }
    return -1;
}
