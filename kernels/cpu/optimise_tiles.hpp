// Optimiser steps, a tile at a time, once for every instruction set: plain loops over arrays of one
// fixed length, which the compiler turns into registers. Included last, behind isa_*.hpp (see
// vector.hpp for why) or, by the scalar set, without one; the file that includes it says how f16
// is widened and narrowed (Half::widen(), Half::narrow()).
//
// No sum goes across elements but merge()'s, whose lanes are written out: so all sets give the same
// bits, whatever the width of their registers.

#pragma once

namespace kernels {
namespace {

#define FABRIC_TILE_INLINE [[gnu::always_inline]] inline

// Eight lines of floats: enough loads in flight, and all arrays of a tile stay in the first cache.
constexpr std::size_t kTile = 128;

typedef float TileFloats[kTile];

// What is stored before this is stored for other processes before what is stored after it: x86
// keeps the order of stores, so that only the compiler has to be held.
FABRIC_TILE_INLINE void keep_store_order() {
#if defined(__x86_64__)
    std::atomic_signal_fence(std::memory_order_seq_cst);
#else
    std::atomic_thread_fence(std::memory_order_release);
#endif
}

template <DType kType>
FABRIC_TILE_INLINE void widen(float* __restrict to, const void* from, std::size_t at,
                              std::size_t count) {
    if constexpr (kType == DType::kF32) {
        __builtin_memcpy(to, static_cast<const float*>(from) + at, count * sizeof(float));
    } else if constexpr (kType == DType::kBF16) {
        const auto* halves = static_cast<const std::uint16_t*>(from) + at;
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint32_t bits = static_cast<std::uint32_t>(halves[i]) << 16;
            __builtin_memcpy(&to[i], &bits, sizeof bits);
        }
    } else {
        Half::widen(to, static_cast<const std::uint16_t*>(from) + at, count);
    }
}

// The sum of all gradients of a tile, weighted, in the order of the ranks.
template <DType kType>
FABRIC_TILE_INLINE void merge_tile(float* __restrict sum, const void* const* gradients,
                                   int gradient_count, const float* weights, std::size_t at,
                                   std::size_t count) {
    widen<kType>(sum, gradients[0], at, count);
    if (weights != nullptr) {
        const float weight = weights[0];
        for (std::size_t i = 0; i < count; ++i) sum[i] *= weight;
    }
    for (int source = 1; source < gradient_count; ++source) {
        TileFloats next;
        widen<kType>(next, gradients[source], at, count);
        if (weights != nullptr) {
            const float weight = weights[source];
            for (std::size_t i = 0; i < count; ++i) sum[i] += weight * next[i];
        } else {
            for (std::size_t i = 0; i < count; ++i) sum[i] += next[i];
        }
    }
}

// What a tile works on: parameters and states as they were, which become what they are.
struct Tile {
    TileFloats gradient, parameters, first, second, maximum;
};

template <Rule kRule>
FABRIC_TILE_INLINE void move_tile(const StepFactors& f, float scale, Tile& tile,
                                  std::size_t count) {
    const float signed_scale = f.maximize ? -scale : scale;
    float* __restrict g = tile.gradient;
    float* __restrict p = tile.parameters;
    float* __restrict m = tile.first;
    float* __restrict v = tile.second;
    float* __restrict s = tile.maximum;
    for (std::size_t i = 0; i < count; ++i) g[i] *= signed_scale;
    if constexpr (kRule == Rule::kSgd || kRule == Rule::kAdam) {
        if (f.decay != 0) {
            for (std::size_t i = 0; i < count; ++i) g[i] += f.decay * p[i];
        }
    }
    if constexpr (kRule == Rule::kSgd) {
        if (f.begins) {
            for (std::size_t i = 0; i < count; ++i) m[i] = g[i];
        } else {
            for (std::size_t i = 0; i < count; ++i) m[i] = f.beta1 * m[i] + f.one_less1 * g[i];
        }
        if (f.nesterov) {
            for (std::size_t i = 0; i < count; ++i) p[i] -= f.rate * (g[i] + f.beta1 * m[i]);
        } else {
            for (std::size_t i = 0; i < count; ++i) p[i] -= f.rate * m[i];
        }
        return;
    }
    for (std::size_t i = 0; i < count; ++i) {
        m[i] = f.beta1 * m[i] + f.one_less1 * g[i];
        if constexpr (kRule == Rule::kAdam || kRule == Rule::kAdamW) {
            v[i] = f.beta2 * v[i] + f.one_less2 * g[i] * g[i];
        } else {
            const float off = g[i] - m[i];
            v[i] = f.beta2 * v[i] + f.one_less2 * off * off + f.epsilon;
        }
        float root;
        if constexpr (kRule == Rule::kMaxAdaBelief) {
            const float corrected = v[i] / f.less2;
            s[i] = s[i] > corrected ? s[i] : corrected;  // in this order a NaN becomes the maximum
            root = __builtin_sqrtf(s[i]);
        } else {
            root = __builtin_sqrtf(v[i]) / f.root_less2;
        }
        p[i] = p[i] * f.keep - f.rate * m[i] / (root + f.epsilon);
    }
}

FABRIC_TILE_INLINE void copy_floats(float* to, const float* from, std::size_t count) {
    __builtin_memcpy(to, from, count * sizeof(float));
}

template <Rule kRule, DType kType>
FABRIC_TILE_INLINE void step_tile(const OptimiseJob& job, std::size_t at, std::size_t count) {
    constexpr RuleRow kRow = row_of(kRule);
    Tile tile;
    merge_tile<kType>(tile.gradient, job.gradients, job.gradient_count, job.weights, at, count);
    copy_floats(tile.parameters, job.parameters + at, count);
    if constexpr (kRow.first) copy_floats(tile.first, job.first + at, count);
    if constexpr (kRow.second) copy_floats(tile.second, job.second + at, count);
    if constexpr (kRow.maximum) copy_floats(tile.maximum, job.maximum + at, count);
    if (const UndoLog* log = job.undo; log != nullptr) {
        copy_floats(log->parameters + at, tile.parameters, count);
        if constexpr (kRow.first) copy_floats(log->first + at, tile.first, count);
        if constexpr (kRow.second) copy_floats(log->second + at, tile.second, count);
        if constexpr (kRow.maximum) copy_floats(log->maximum + at, tile.maximum, count);
        keep_store_order();
        // Relaxed, between the two: the old values are there before it, the new ones come after.
        log->logged->store(log->base + at + count, std::memory_order_relaxed);
        keep_store_order();
    }
    move_tile<kRule>(job.factors, job.scale, tile, count);
    copy_floats(job.parameters + at, tile.parameters, count);
    if constexpr (kRow.first) copy_floats(job.first + at, tile.first, count);
    if constexpr (kRow.second) copy_floats(job.second + at, tile.second, count);
    if constexpr (kRow.maximum) copy_floats(job.maximum + at, tile.maximum, count);
    if (job.copy == nullptr) return;
    auto* halves = static_cast<std::uint16_t*>(job.copy) + at;
    if (job.copy_type == DType::kBF16) {
        for (std::size_t i = 0; i < count; ++i) {
            std::uint32_t bits;
            __builtin_memcpy(&bits, &tile.parameters[i], sizeof bits);
            const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
            const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
            halves[i] = static_cast<std::uint16_t>(nan ? kTileNanBF16 : rounded);
        }
    } else {
        Half::narrow(halves, tile.parameters, count);
    }
}

template <Rule kRule, DType kType>
void optimise_tiles(const OptimiseJob& job) noexcept {
    std::size_t at = 0;
    for (; job.count - at >= kTile; at += kTile) step_tile<kRule, kType>(job, at, kTile);
    if (at < job.count) step_tile<kRule, kType>(job, at, job.count - at);
}

constexpr int kSumLanes = 16;

template <DType kType>
Merged merge_tiles(const MergeJob& job) noexcept {
    double lanes[kSumLanes] = {};
    std::uint32_t largest = 0;
    for (std::size_t at = 0; at < job.count; at += kTile) {
        const std::size_t count = job.count - at < kTile ? job.count - at : kTile;
        TileFloats sum;
        merge_tile<kType>(sum, job.gradients, job.gradient_count, job.weights, at, count);
        // Squares of 0 change no sum.
        for (std::size_t i = count; i < kTile; ++i) sum[i] = 0;
        std::uint32_t bits[kTile];
        __builtin_memcpy(bits, sum, sizeof bits);
        for (std::size_t i = 0; i < kTile; ++i) {
            const std::uint32_t magnitude = bits[i] & 0x7fffffffu;
            largest = magnitude > largest ? magnitude : largest;
        }
        for (std::size_t i = 0; i < kTile; i += kSumLanes) {
            for (std::size_t lane = 0; lane < kSumLanes; ++lane) {
                const double value = sum[i + lane];
                lanes[lane] += value * value;
            }
        }
    }
    Merged merged;
    merged.finite = largest < 0x7f800000u;
    for (const double lane : lanes) merged.square_sum += lane;
    return merged;
}

template <int kRule, int... kTypes>
constexpr void fill_rule(OptimiseTable& table, std::integer_sequence<int, kTypes...>) {
    ((table.optimise[kRule][kTypes] =
          optimise_tiles<static_cast<Rule>(kRule), kGradientTypes[kTypes]>),
     ...);
}

template <int... kRules>
constexpr OptimiseTable make_optimise_table(std::integer_sequence<int, kRules...>) {
    OptimiseTable table{};
    constexpr std::make_integer_sequence<int, kGradientTypeCount> kTypes;
    (fill_rule<kRules>(table, kTypes), ...);
    table.merge[0] = merge_tiles<kGradientTypes[0]>;
    table.merge[1] = merge_tiles<kGradientTypes[1]>;
    table.merge[2] = merge_tiles<kGradientTypes[2]>;
    return table;
}

constexpr OptimiseTable make_optimise_table() {
    return make_optimise_table(std::make_integer_sequence<int, kRuleCount>());
}

}  // namespace
}  // namespace kernels
