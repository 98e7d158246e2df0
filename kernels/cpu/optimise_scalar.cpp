// Optimiser steps in plain C++: the definition of right for every other version. Formulas are those
// of docs/optimisers.md, each operation rounded to f32 (-ffp-contract=off).

#include <utility>

#include "kernels/cpu/half.hpp"
#include "kernels/cpu/kernel_set.hpp"

namespace kernels {

namespace {

float one_nan(float value) noexcept {
    return value == value ? value : bits_as<float>(kNanF32);
}

template <DType kType>
float gradient_at(const void* gradients, std::size_t at) noexcept {
    if constexpr (kType == DType::kF32) {
        return static_cast<const float*>(gradients)[at];
    } else if constexpr (kType == DType::kF16) {
        return f16_to_f32(static_cast<const std::uint16_t*>(gradients)[at]);
    } else {
        static_assert(kType == DType::kBF16);
        return bf16_to_f32(static_cast<const std::uint16_t*>(gradients)[at]);
    }
}

template <DType kType>
void merge_elements(const MergePart& part, float* sum) noexcept {
    for (std::size_t i = 0; i < part.count; ++i) {
        float value = 0;
        for (int source = 0; source < part.gradient_count; ++source) {
            // A product with 1 is exact, so that all of them may be weighted.
            const float weight = part.weights != nullptr ? part.weights[source] : 1;
            const float term = weight * gradient_at<kType>(part.gradients[source], part.at + i);
            value = source == 0 ? term : value + term;
        }
        sum[i] = one_nan(value * part.scale);
    }
}

void step_sgd(const StepFactors& f, float g, float* parameter, float* first) noexcept {
    float p = *parameter;
    if (f.decay != 0) g += f.decay * p;
    float direction = g;
    if (first != nullptr) {
        const float m = f.begins ? g : f.beta1 * *first + f.one_less1 * g;
        direction = f.nesterov ? g + f.beta1 * m : m;
        *first = one_nan(m);
    }
    *parameter = one_nan(p - f.rate * direction);
}

// `maximum` is nullptr but for max-AdaBelief.
template <Rule kRule>
void step_moments(const StepFactors& f, float g, float* parameter, float* first, float* second,
                  float* maximum) noexcept {
    constexpr bool kBelief = kRule == Rule::kAdaBelief || kRule == Rule::kMaxAdaBelief;
    const float p = *parameter;
    if (f.decay != 0) g += f.decay * p;
    const float m = f.beta1 * *first + f.one_less1 * g;
    const float base = kBelief ? g - m : g;
    float v = f.beta2 * *second + f.one_less2 * base * base;
    if constexpr (kBelief) v += f.epsilon;
    float root;
    if constexpr (kRule == Rule::kMaxAdaBelief) {
        const float corrected = v / f.less2;
        // NaN wins, as in PyTorch's maximum().
        const bool rises = corrected > *maximum || corrected != corrected;
        const float s = rises ? corrected : *maximum;
        root = __builtin_sqrtf(s);
        *maximum = one_nan(s);
    } else {
        root = __builtin_sqrtf(v) / f.root_less2;
    }
    *first = one_nan(m);
    *second = one_nan(v);
    *parameter = one_nan(p * f.keep - f.rate * m / (root + f.epsilon));
}

template <Rule kRule>
void step_elements(const StepPart& part) noexcept {
    const StepFactors f = part.factors;
    for (std::size_t i = 0; i < part.count; ++i) {
        if constexpr (kRule == Rule::kSgd) {
            float* first = part.first != nullptr ? part.first + i : nullptr;
            step_sgd(f, part.gradient[i], part.parameters + i, first);
        } else {
            float* maximum = row_of(kRule).maximum ? part.maximum + i : nullptr;
            step_moments<kRule>(f, part.gradient[i], part.parameters + i, part.first + i,
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
