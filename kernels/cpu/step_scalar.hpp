// One element of an optimiser step: the definition of right, of which the scalar kernel and those
// of CUDA are made. Formulas are those of docs/optimisers.md, each operation rounded to f32
// (-ffp-contract=off, -fmad=false). constexpr, which nvcc compiles for both.

#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/half.hpp"
#include "kernels/optimise.hpp"

namespace kernels::scalar {

template <DType kType>
using GradientOf = std::conditional_t<kType == DType::kF32, float, std::uint16_t>;

// Rounded once, to nearest even.
constexpr float root_of(float value) noexcept {
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(value);
#else
    return __builtin_sqrtf(value);
#endif
}

constexpr float one_nan(float value) noexcept {
    return value == value ? value : bits_as<float>(kNanF32);
}

/// What a gradient of this type is as f32: exactly.
template <DType kType>
constexpr float widen_gradient(GradientOf<kType> stored) noexcept {
    if constexpr (kType == DType::kF32) {
        return stored;
    } else if constexpr (kType == DType::kF16) {
        return f16_to_f32(stored);
    } else {
        static_assert(kType == DType::kBF16);
        return bf16_to_f32(stored);
    }
}

/// The merged gradient with one more source.
constexpr float add_gradient(float sum, float weight, float gradient, bool is_first) noexcept {
    // A product with 1 is exact, so that all of them may be weighted.
    const float term = weight * gradient;
    return is_first ? term : sum + term;
}

constexpr void step_sgd(const StepFactors& f, float g, float* parameter, float* first) noexcept {
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
constexpr void step_moments(const StepFactors& f, float g, float* parameter, float* first,
                            float* second, float* maximum) noexcept {
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
        root = root_of(s);
        *maximum = one_nan(s);
    } else {
        root = root_of(v) / f.root_less2;
    }
    *first = one_nan(m);
    *second = one_nan(v);
    *parameter = one_nan(p * f.keep - f.rate * m / (root + f.epsilon));
}

}  // namespace kernels::scalar
