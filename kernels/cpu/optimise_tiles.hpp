// Optimiser steps, once for every instruction set: a tile of a few registers of each array is read,
// logged, moved and stored, so that nothing of it is ever in memory but where it belongs. Included
// last, behind optimise_lane.hpp and, but for the scalar set, optimise_lanes_vector.hpp; the file
// that includes it says what a tile is made of (Tiles::Lanes, Tiles::kRegisters).
//
// No sum goes across elements but merge()'s, whose lanes are written out: so all sets give the same
// bits, whatever the width of their registers.

#pragma once

namespace kernels {
namespace {

// What is stored before this is stored for other processes before what is stored after it: x86
// keeps the order of stores, so that only the compiler has to be held.
FABRIC_TILE_INLINE void keep_store_order() {
#if defined(__x86_64__)
    std::atomic_signal_fence(std::memory_order_seq_cst);
#else
    std::atomic_thread_fence(std::memory_order_release);
#endif
}

// A copy of what does not change from tile to tile: the compiler can't know of the job itself that
// no store alters it.
struct Sources {
    const void* const* gradients;
    int count;
    const float* weights;
};

struct States {
    float *parameters, *first, *second, *maximum;
};

constexpr std::size_t kTileLine = 64;

// Asks for the line of a tile that comes later; past the end of an array, too, since the arrays of
// a parameter set go on there, and asking for what does not exist does nothing.
template <std::size_t kBytes>
FABRIC_TILE_INLINE void prefetch_tile(const void* from, std::size_t ahead) {
    for (std::size_t line = 0; line < kBytes; line += kTileLine) {
        __builtin_prefetch(static_cast<const char*>(from) + ahead + line);
    }
}

// kRegisters of each array, from element `at` on.
template <class Lanes, int kRegisters>
struct Tile {
    using Value = typename Lanes::Value;
    static constexpr std::size_t kElements = kRegisters * Lanes::kLanes;

    Value gradient[kRegisters], parameters[kRegisters];
    Value first[kRegisters], second[kRegisters], maximum[kRegisters];

#define FABRIC_EACH_REGISTER _Pragma("GCC unroll 16") for (int r = 0; r < kRegisters; ++r)

    FABRIC_TILE_INLINE static void load(Value* to, const float* from) {
        FABRIC_EACH_REGISTER to[r] = Lanes::load(from + r * Lanes::kLanes);
    }
    FABRIC_TILE_INLINE static void store(float* to, const Value* from) {
        FABRIC_EACH_REGISTER Lanes::store(to + r * Lanes::kLanes, from[r]);
    }

    // The sum of all gradients, weighted, in the order of the ranks.
    template <DType kType>
    FABRIC_TILE_INLINE void merge(const Sources& from, std::size_t at) {
        const void* one = from.gradients[0];
        FABRIC_EACH_REGISTER gradient[r] =
            Lanes::template widen<kType>(one, at + r * Lanes::kLanes);
        if (from.weights == nullptr) {
            for (int source = 1; source < from.count; ++source) {
                one = from.gradients[source];
                FABRIC_EACH_REGISTER gradient[r] +=
                    Lanes::template widen<kType>(one, at + r * Lanes::kLanes);
            }
            return;
        }
        FABRIC_EACH_REGISTER gradient[r] *= from.weights[0];
        for (int source = 1; source < from.count; ++source) {
            one = from.gradients[source];
            const float weight = from.weights[source];
            FABRIC_EACH_REGISTER gradient[r] +=
                weight * Lanes::template widen<kType>(one, at + r * Lanes::kLanes);
        }
    }

    template <Rule kRule>
    FABRIC_TILE_INLINE void load_states(const States& from, std::size_t at) {
        constexpr RuleRow kRow = row_of(kRule);
        load(parameters, from.parameters + at);
        if constexpr (kRow.first) load(first, from.first + at);
        if constexpr (kRow.second) load(second, from.second + at);
        if constexpr (kRow.maximum) load(maximum, from.maximum + at);
    }
    template <Rule kRule>
    FABRIC_TILE_INLINE void store_states(const States& to, std::size_t at) const {
        constexpr RuleRow kRow = row_of(kRule);
        store(to.parameters + at, parameters);
        if constexpr (kRow.first) store(to.first + at, first);
        if constexpr (kRow.second) store(to.second + at, second);
        if constexpr (kRow.maximum) store(to.maximum + at, maximum);
    }
    FABRIC_TILE_INLINE void store_copy(std::uint16_t* to, bool is_bf16) const {
        if (is_bf16) {
            FABRIC_EACH_REGISTER Lanes::store_bf16(to + r * Lanes::kLanes, parameters[r]);
        } else {
            FABRIC_EACH_REGISTER Lanes::store_f16(to + r * Lanes::kLanes, parameters[r]);
        }
    }

    FABRIC_TILE_INLINE void move_sgd(const StepFactors& f) {
        FABRIC_EACH_REGISTER {
            const Value g = gradient[r];
            const Value m = f.begins ? g : f.beta1 * first[r] + f.one_less1 * g;
            first[r] = m;
            parameters[r] -= f.rate * (f.nesterov ? g + f.beta1 * m : m);
        }
    }

    template <Rule kRule>
    FABRIC_TILE_INLINE void move(const StepFactors& f, float signed_scale) {
        FABRIC_EACH_REGISTER gradient[r] *= signed_scale;
        if constexpr (kRule == Rule::kSgd || kRule == Rule::kAdam) {
            if (f.decay != 0) {
                FABRIC_EACH_REGISTER gradient[r] += f.decay * parameters[r];
            }
        }
        if constexpr (kRule == Rule::kSgd) return move_sgd(f);
        FABRIC_EACH_REGISTER {
            const Value g = gradient[r];
            const Value m = f.beta1 * first[r] + f.one_less1 * g;
            first[r] = m;
            if constexpr (kRule == Rule::kAdam || kRule == Rule::kAdamW) {
                second[r] = f.beta2 * second[r] + f.one_less2 * g * g;
            } else {
                const Value off = g - m;
                second[r] = f.beta2 * second[r] + f.one_less2 * off * off + f.epsilon;
            }
            Value root;
            if constexpr (kRule == Rule::kMaxAdaBelief) {
                const Value corrected = second[r] / f.less2;
                // In this order a NaN becomes the maximum.
                maximum[r] = maximum[r] > corrected ? maximum[r] : corrected;
                root = Lanes::root(maximum[r]);
            } else {
                root = Lanes::root(second[r]) / f.root_less2;
            }
            parameters[r] = parameters[r] * f.keep - f.rate * m / (root + f.epsilon);
        }
    }
};

template <Rule kRule, DType kType>
struct Steps {
    static constexpr RuleRow kRow = row_of(kRule);

    FABRIC_TILE_INLINE explicit Steps(const OptimiseJob& job)
        : sources{job.gradients, job.gradient_count, job.weights},
          states{job.parameters, job.first, job.second, job.maximum},
          factors(job.factors),
          signed_scale(job.factors.maximize ? -job.scale : job.scale),
          copy(static_cast<std::uint16_t*>(job.copy)),
          copies_bf16(job.copy_type == DType::kBF16),
          streaming(job.streaming) {
        if (job.undo == nullptr) return;
        const UndoLog& undo = *job.undo;
        logged = undo.logged;
        base = undo.base;
        old = {undo.parameters, undo.first, undo.second, undo.maximum};
    }

    template <class Lanes, int kRegisters>
    FABRIC_TILE_INLINE void step(std::size_t at) const {
        Tile<Lanes, kRegisters> tile;
        using T = Tile<Lanes, kRegisters>;
        if (streaming) prefetch<T::kElements>(at);
        tile.template load_states<kRule>(states, at);
        if (logged != nullptr) {
            tile.template store_states<kRule>(old, at);
            keep_store_order();
            // Relaxed, between the two: the old values are there before it, the new ones come
            // after.
            logged->store(base + at + T::kElements, std::memory_order_relaxed);
            keep_store_order();
        }
        tile.template merge<kType>(sources, at);
        tile.template move<kRule>(factors, signed_scale);
        tile.template store_states<kRule>(states, at);
        if (copy != nullptr) tile.store_copy(copy + at, copies_bf16);
    }

  private:
    template <std::size_t kElements>
    FABRIC_TILE_INLINE void prefetch(std::size_t at) const {
        constexpr std::size_t kFloats = kElements * sizeof(float);
        for (int source = 0; source < sources.count; ++source) {
            const auto* from = static_cast<const char*>(sources.gradients[source]);
            prefetch_tile<kElements * size_of(kType)>(from + at * size_of(kType), kAhead);
        }
        prefetch_tile<kFloats>(states.parameters + at, kAhead);
        if constexpr (kRow.first) prefetch_tile<kFloats>(states.first + at, kAhead);
        if constexpr (kRow.second) prefetch_tile<kFloats>(states.second + at, kAhead);
        if constexpr (kRow.maximum) prefetch_tile<kFloats>(states.maximum + at, kAhead);
    }

    // Bytes; see docs/kernels.md for what was tried.
    static constexpr std::size_t kAhead = 512;

    Sources sources;
    States states, old{};
    StepFactors factors;
    float signed_scale;
    std::uint16_t* copy;
    bool copies_bf16, streaming;
    std::atomic<std::uint64_t>* logged = nullptr;
    std::uint64_t base = 0;
};

template <Rule kRule, DType kType>
void optimise_tiles(const OptimiseJob& job) noexcept {
    using T = Tile<Tiles::Lanes, Tiles::kRegisters>;
    const Steps<kRule, kType> steps(job);
    const std::size_t count = job.count;
    std::size_t at = 0;
    for (; count - at >= T::kElements; at += T::kElements) {
        steps.template step<Tiles::Lanes, Tiles::kRegisters>(at);
    }
    for (; at < count; ++at) steps.template step<OneLane, 1>(at);
}

constexpr int kSumLanes = 16;
constexpr std::size_t kSumTile = 128;

// Square sum and finiteness of kSumTile elements, or what is left.
template <DType kType>
FABRIC_TILE_INLINE void merge_tile(float* sum, const Sources& sources, std::size_t at,
                                   std::size_t count) {
    using T = Tile<Tiles::Lanes, Tiles::kRegisters>;
    std::size_t i = 0;
    for (; i + T::kElements <= count; i += T::kElements) {
        T tile;
        tile.template merge<kType>(sources, at + i);
        T::store(sum + i, tile.gradient);
    }
    for (; i < count; ++i) {
        Tile<OneLane, 1> tile;
        tile.template merge<kType>(sources, at + i);
        sum[i] = tile.gradient[0];
    }
}

template <DType kType>
Merged merge_tiles(const MergeJob& job) noexcept {
    const Sources sources{job.gradients, job.gradient_count, job.weights};
    double lanes[kSumLanes] = {};
    std::uint32_t largest = 0;
    for (std::size_t at = 0; at < job.count; at += kSumTile) {
        const std::size_t count = job.count - at < kSumTile ? job.count - at : kSumTile;
        float sum[kSumTile];
        merge_tile<kType>(sum, sources, at, count);
        // Squares of 0 change no sum.
        for (std::size_t i = count; i < kSumTile; ++i) sum[i] = 0;
        std::uint32_t bits[kSumTile];
        __builtin_memcpy(bits, sum, sizeof bits);
        for (std::size_t i = 0; i < kSumTile; ++i) {
            const std::uint32_t magnitude = bits[i] & 0x7fffffffu;
            largest = magnitude > largest ? magnitude : largest;
        }
        for (std::size_t i = 0; i < kSumTile; i += kSumLanes) {
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
