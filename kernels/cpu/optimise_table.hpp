// One instruction set's optimiser steps: a function for every rule and type of gradients. Internal
// to kernels/ and its tests.

#pragma once

#include "kernels/optimise.hpp"

namespace kernels {

inline constexpr DType kGradientTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
inline constexpr int kGradientTypeCount = 3;

using OptimiseFunction = void (*)(const OptimiseJob& job) noexcept;
using MergeFunction = Merged (*)(const MergeJob& job) noexcept;

struct OptimiseTable {
    OptimiseFunction optimise[kRuleCount][kGradientTypeCount];
    MergeFunction merge[kGradientTypeCount];
};

// As half.hpp has them, whose functions may not be called where these are used.
inline constexpr std::uint16_t kTileNanBF16 = 0x7fc0u;
inline constexpr std::uint16_t kTileNanF16 = 0x7e00u;

extern const OptimiseTable kOptimiseScalar;
extern const OptimiseTable kOptimiseAvx2;
extern const OptimiseTable kOptimiseAvx512;

}  // namespace kernels
