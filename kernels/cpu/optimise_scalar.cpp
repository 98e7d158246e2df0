// Optimiser steps in plain C++: the definition of right for every other version.

#include <utility>

#include "kernels/cpu/half.hpp"
#include "kernels/cpu/kernel_set.hpp"
#include "kernels/cpu/step_scalar.hpp"

namespace kernels {

namespace {

template <DType kType>
float gradient_at(const void* gradients, std::size_t at) noexcept {
    using Stored = scalar::GradientOf<kType>;
    return scalar::widen_gradient<kType>(static_cast<const Stored*>(gradients)[at]);
}

template <DType kType>
void merge_elements(const MergePart& part, float* sum) noexcept {
    for (std::size_t i = 0; i < part.count; ++i) {
        float value = 0;
        for (int source = 0; source < part.gradient_count; ++source) {
            const float weight = part.weights != nullptr ? part.weights[source] : 1;
            const float gradient = gradient_at<kType>(part.gradients[source], part.at + i);
            value = scalar::add_gradient(value, weight, gradient, source == 0);
        }
        sum[i] = scalar::one_nan(value * part.scale);
    }
}

template <Rule kRule>
void step_elements(const StepPart& part) noexcept {
    const StepFactors f = part.factors;
    for (std::size_t i = 0; i < part.count; ++i) {
        if constexpr (kRule == Rule::kSgd) {
            float* first = part.first != nullptr ? part.first + i : nullptr;
            scalar::step_sgd(f, part.gradient[i], part.parameters + i, first);
        } else {
            float* maximum = row_of(kRule).maximum ? part.maximum + i : nullptr;
            scalar::step_moments<kRule>(f, part.gradient[i], part.parameters + i, part.first + i,
                                        part.second + i, maximum);
        }
    }
}

void add_squares(const float* values, std::size_t count, double* lanes) noexcept {
    for (std::size_t i = 0; i < count; i += kSumLanes) {
        for (std::size_t lane = 0; lane < kSumLanes; ++lane) {
            const double value = values[i + lane];
            lanes[lane] += value * value;  // the product is exact
        }
    }
}

template <DType kType>
void narrow_elements(const float* from, std::size_t count, std::uint16_t* to) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        to[i] = kType == DType::kF16 ? f32_to_f16(from[i]) : f32_to_bf16(from[i]);
    }
}

template <int... kTypes, int... kRules, int... kCopies>
constexpr OptimiseTable make_table(std::integer_sequence<int, kTypes...>,
                                   std::integer_sequence<int, kRules...>,
                                   std::integer_sequence<int, kCopies...>) {
    return {{merge_elements<kGradientTypes[kTypes]>...},
            {step_elements<static_cast<Rule>(kRules)>...},
            {narrow_elements<kCopyTypes[kCopies]>...},
            add_squares};
}

}  // namespace

constexpr OptimiseTable kOptimiseScalar =
    make_table(std::make_integer_sequence<int, kGradientTypeCount>(),
               std::make_integer_sequence<int, kRuleCount>(),
               std::make_integer_sequence<int, kCopyTypeCount>());

}  // namespace kernels
