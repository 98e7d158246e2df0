// What optimiser steps have in common on all instruction sets.

#include "kernels/optimise.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/kernel_set.hpp"

namespace kernels {

namespace {

int index_of(DType type) noexcept {
    for (int i = 0; i < kGradientTypeCount; ++i) {
        if (kGradientTypes[i] == type) return i;
    }
    std::abort();  // a bug of the caller, see the header
}

bool is_share(double value) noexcept {
    return value >= 0 && value < 1;
}

bool is_rate(double value) noexcept {
    return value >= 0 && std::isfinite(value);
}

}  // namespace

const char* unusable_field(Rule rule, const Hyper& hyper) noexcept {
    if (!is_rate(hyper.learning_rate)) return "learning_rate";
    if (!is_rate(hyper.weight_decay)) return "weight_decay";
    if (rule == Rule::kSgd) {
        if (!is_rate(hyper.momentum)) return "momentum";
        if (!std::isfinite(hyper.dampening)) return "dampening";
        const bool nesterov = hyper.momentum > 0 && hyper.dampening == 0;
        return hyper.nesterov && !nesterov ? "nesterov" : nullptr;
    }
    if (!is_share(hyper.beta1)) return "beta1";
    if (!is_share(hyper.beta2)) return "beta2";
    return is_rate(hyper.epsilon) ? nullptr : "epsilon";
}

StepFactors make_step_factors(Rule rule, const Hyper& hyper, std::uint64_t step) noexcept {
    StepFactors f;
    f.maximize = hyper.maximize;
    if (rule == Rule::kSgd) {
        f.decay = static_cast<float>(hyper.weight_decay);
        f.rate = static_cast<float>(hyper.learning_rate);
        f.beta1 = static_cast<float>(hyper.momentum);
        // Without momentum there is nothing to dampen: the step is the gradient.
        f.begins = step == 1 || hyper.momentum == 0;
        f.one_less1 = static_cast<float>(1 - hyper.dampening);
        f.nesterov = hyper.nesterov;
        return f;
    }
    const auto t = static_cast<double>(step);
    const double less1 = 1 - std::pow(hyper.beta1, t);
    const double less2 = 1 - std::pow(hyper.beta2, t);
    const double decay = hyper.learning_rate * hyper.weight_decay;
    if (rule == Rule::kAdam) {
        f.decay = static_cast<float>(hyper.weight_decay);
    } else {
        f.keep = static_cast<float>(1 - decay);
    }
    f.beta1 = static_cast<float>(hyper.beta1);
    f.one_less1 = static_cast<float>(1 - hyper.beta1);
    f.beta2 = static_cast<float>(hyper.beta2);
    f.one_less2 = static_cast<float>(1 - hyper.beta2);
    f.epsilon = static_cast<float>(hyper.epsilon);
    f.root_less2 = static_cast<float>(std::sqrt(less2));
    f.less2 = static_cast<float>(less2);
    f.rate = static_cast<float>(hyper.learning_rate / less1);
    return f;
}

void optimise_with(const KernelSet& set, const OptimiseJob& job) noexcept {
    set.optimise->optimise[static_cast<int>(job.rule)][index_of(job.gradient_type)](job);
}

Merged merge_with(const KernelSet& set, const MergeJob& job) noexcept {
    return set.optimise->merge[index_of(job.gradient_type)](job);
}

void undo(const OptimiseJob& job) noexcept {
    const UndoLog& log = *job.undo;
    // Acquire: the process that stored it may have been another one.
    const std::uint64_t logged = log.logged->load(std::memory_order_acquire);
    if (logged <= log.base) return;
    const std::size_t count = std::min<std::uint64_t>(logged - log.base, job.count);
    const auto put_back = [count](float* to, const float* from) {
        if (to != nullptr) std::memcpy(to, from, count * sizeof(float));
    };
    put_back(job.parameters, log.parameters);
    put_back(job.first, log.first);
    put_back(job.second, log.second);
    put_back(job.maximum, log.maximum);
}

}  // namespace kernels
