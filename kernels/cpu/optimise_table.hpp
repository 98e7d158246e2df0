// What one instruction set offers for optimiser steps: functions for a block of elements that stays
// in the first-level cache. optimise.cpp strings them together. Internal to kernels/ and its tests.

#pragma once

#include "kernels/optimise.hpp"

namespace kernels {

inline constexpr DType kGradientTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
inline constexpr int kGradientTypeCount = sizeof kGradientTypes / sizeof kGradientTypes[0];
inline constexpr DType kCopyTypes[] = {DType::kF16, DType::kBF16};
inline constexpr int kCopyTypeCount = sizeof kCopyTypes / sizeof kCopyTypes[0];

/// Where a type is in these lists; -1: it is in neither.
constexpr int gradient_index(DType type) noexcept {
    for (int i = 0; i < kGradientTypeCount; ++i) {
        if (kGradientTypes[i] == type) return i;
    }
    return -1;
}
constexpr int copy_index(DType type) noexcept {
    for (int i = 0; i < kCopyTypeCount; ++i) {
        if (kCopyTypes[i] == type) return i;
    }
    return -1;
}

/// Elements of a block: a whole number of lines of every type, and short enough that the lines of
/// eight arrays and of what is fetched ahead of them stay in the first-level cache.
inline constexpr std::size_t kBlockElements = 256;

/// Squares are summed in so many lanes, by index: registers of every width divide them.
inline constexpr std::size_t kSumLanes = 16;

/// Elements [at, at + count) of the gradients.
struct MergePart {
    const void* const* gradients;
    int gradient_count;
    const float* weights;
    float scale;
    std::size_t at;
    std::size_t count;
    bool fetch_ahead;
};

/// `count` elements, of pointers that already are at the first one.
struct StepPart {
    StepFactors factors;
    const float* gradient;
    float* parameters;
    float* first;
    float* second;
    float* maximum;
    std::size_t count;
    bool fetch_ahead;
};

/// `sum` receives part.count values, NaN as kNanF32.
using MergeFunction = void (*)(const MergePart& part, float* sum) noexcept;
using StepFunction = void (*)(const StepPart& part) noexcept;
/// Adds squares to kSumLanes lanes; `count` is a multiple of their number.
using SquaresFunction = void (*)(const float* values, std::size_t count, double* lanes) noexcept;
using NarrowFunction = void (*)(const float* from, std::size_t count, std::uint16_t* to) noexcept;

struct OptimiseTable {
    MergeFunction merge[kGradientTypeCount];
    StepFunction step[kRuleCount];
    NarrowFunction narrow[kCopyTypeCount];
    SquaresFunction add_squares;
};

extern const OptimiseTable kOptimiseScalar;
extern const OptimiseTable kOptimiseAvx2;
extern const OptimiseTable kOptimiseAvx512;

}  // namespace kernels
