// Optimiser steps, once for every register width: optimise_scalar.cpp, a register at a time. See
// vector.hpp for how this file is compiled; the file that includes it makes its table with
// make_optimise_table(). What does not fill a register is the scalar version's.

#pragma once

#include "kernels/cpu/elements_vector.hpp"
#include "kernels/cpu/vector.hpp"

namespace kernels {
namespace {

constexpr std::size_t kFloatLanes = kWidth / sizeof(float);
constexpr std::size_t kMergeVectors = 4;  // registers in flight
static_assert(kSumLanes % kFloatLanes == 0 && kBlockElements % (kMergeVectors * kFloatLanes) == 0);

// Two blocks: what is fetched while one block is worked on is there for the next.
constexpr std::size_t kStepAhead = 2 * kBlockElements;

struct HalfWordsOf {
    typedef std::uint16_t type __attribute__((vector_size(Isa::kBytes / 2)));
};
using HalfWords = HalfWordsOf::type;

template <DType kType>
FABRIC_INLINE Floats load_gradient(const char* from) {
    if constexpr (kType == DType::kF32) {
        return load_vector<Floats>(from);
    } else if constexpr (kType == DType::kF16) {
        return Isa::widen_f16(from);
    } else {
        return (Floats)(__builtin_convertvector(load_vector<HalfWords>(from), Words) << 16);
    }
}

// A tile of registers of one gradient, weighted.
template <DType kType, std::size_t kVectors>
struct Term {
    static constexpr std::size_t kBytes = size_of(kType);

    FABRIC_INLINE Term(const MergePart& part, int source, std::size_t at)
        : from_(static_cast<const char*>(part.gradients[source]) + (part.at + at) * kBytes),
          weight_(part.weights != nullptr ? part.weights[source] : 1) {
        if (!part.fetch_ahead) return;
        for (std::size_t line = 0; line < kVectors * kFloatLanes * kBytes; line += kLine) {
            __builtin_prefetch(from_ + kStepAhead * kBytes + line);
        }
    }
    FABRIC_INLINE Floats at(std::size_t v) const {
        return weight_ * load_gradient<kType>(from_ + v * kFloatLanes * kBytes);
    }

  private:
    const char* from_;
    float weight_;
};

// A tile of the sum, from gradients [begin, end): those before are in `sum` already.
template <DType kType, std::size_t kVectors>
FABRIC_INLINE void merge_tile(const MergePart& part, std::size_t at, int begin, int end,
                              float* sum) {
    Floats value[kVectors];
    int source = begin;
    if (begin == 0) {
        const Term<kType, kVectors> term(part, source++, at);
#pragma GCC unroll 4
        for (std::size_t v = 0; v < kVectors; ++v) value[v] = term.at(v);
    } else {
#pragma GCC unroll 4
        for (std::size_t v = 0; v < kVectors; ++v) {
            value[v] = load_vector<Floats>(reinterpret_cast<const char*>(sum + v * kFloatLanes));
        }
    }
    for (; source < end; ++source) {
        const Term<kType, kVectors> term(part, source, at);
#pragma GCC unroll 4
        for (std::size_t v = 0; v < kVectors; ++v) value[v] += term.at(v);
    }
    const bool last = end == part.gradient_count;
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
        if (last) value[v] = F32Element::pack(value[v] * part.scale);
        store_vector(reinterpret_cast<char*>(sum + v * kFloatLanes), value[v]);
    }
}

template <DType kType>
void merge_vectors(const MergePart& part, float* sum) noexcept {
    // More are taken in groups, see Reduction::kGroup.
    constexpr int kGroup = 8;
    constexpr std::size_t kTile = kMergeVectors * kFloatLanes;
    const std::size_t whole = part.count / kFloatLanes * kFloatLanes;
    for (int begin = 0; begin < part.gradient_count; begin += kGroup) {
        const int left = part.gradient_count - begin;
        const int end = begin + (left < kGroup ? left : kGroup);
        std::size_t at = 0;
        for (; whole - at >= kTile; at += kTile) {
            merge_tile<kType, kMergeVectors>(part, at, begin, end, sum + at);
        }
        for (; at < whole; at += kFloatLanes) {
            merge_tile<kType, 1>(part, at, begin, end, sum + at);
        }
    }
    if (whole == part.count) return;
    MergePart rest = part;
    rest.at += whole;
    rest.count -= whole;
    kOptimiseScalar.merge[gradient_index(kType)](rest, sum + whole);
}

// One of the arrays that are moved, by registers.
struct Moved {
    char* pointer;

    FABRIC_INLINE Floats load(std::size_t at, bool fetch_ahead) const {
        const char* from = pointer + at * sizeof(float);
        if (fetch_ahead) __builtin_prefetch(from + kStepAhead * sizeof(float));
        return load_vector<Floats>(from);
    }
    FABRIC_INLINE void store(std::size_t at, Floats value) const {
        store_vector(pointer + at * sizeof(float), F32Element::pack(value));
    }
};

FABRIC_INLINE Moved moved(float* array) {
    return {reinterpret_cast<char*>(array)};
}

FABRIC_INLINE Floats gradient_at(const StepPart& part, std::size_t at, Floats p) {
    const Floats g = load_vector<Floats>(reinterpret_cast<const char*>(part.gradient + at));
    return part.factors.decay != 0 ? g + part.factors.decay * p : g;
}

template <bool kMomentum>
FABRIC_INLINE void step_sgd(const StepPart& part, std::size_t at, bool fetch_ahead) {
    const StepFactors& f = part.factors;
    const Floats p = moved(part.parameters).load(at, fetch_ahead);
    const Floats g = gradient_at(part, at, p);
    Floats direction = g;
    if constexpr (kMomentum) {
        const Floats before = moved(part.first).load(at, fetch_ahead);
        const Floats m = f.begins ? g : f.beta1 * before + f.one_less1 * g;
        direction = f.nesterov ? g + f.beta1 * m : m;
        moved(part.first).store(at, m);
    }
    moved(part.parameters).store(at, p - f.rate * direction);
}

template <Rule kRule>
FABRIC_INLINE void step_moments(const StepPart& part, std::size_t at, bool fetch_ahead) {
    constexpr bool kBelief = kRule == Rule::kAdaBelief || kRule == Rule::kMaxAdaBelief;
    const StepFactors& f = part.factors;
    const Floats p = moved(part.parameters).load(at, fetch_ahead);
    const Floats g = gradient_at(part, at, p);
    const Floats m = f.beta1 * moved(part.first).load(at, fetch_ahead) + f.one_less1 * g;
    const Floats base = kBelief ? g - m : g;
    Floats v = f.beta2 * moved(part.second).load(at, fetch_ahead) + f.one_less2 * base * base;
    if constexpr (kBelief) v += f.epsilon;
    Floats root;
    if constexpr (kRule == Rule::kMaxAdaBelief) {
        const Floats corrected = v / f.less2;
        const Floats before = moved(part.maximum).load(at, fetch_ahead);
        const auto rises = (corrected > before) | (corrected != corrected);
        const Floats s = rises ? corrected : before;
        root = Isa::root(s);
        moved(part.maximum).store(at, s);
    } else {
        root = Isa::root(v) / f.root_less2;
    }
    moved(part.first).store(at, m);
    moved(part.second).store(at, v);
    moved(part.parameters).store(at, p * f.keep - f.rate * m / (root + f.epsilon));
}

template <Rule kRule>
void step_vectors(const StepPart& part) noexcept {
    const std::size_t whole = part.count / kFloatLanes * kFloatLanes;
    for (std::size_t at = 0; at < whole; at += kFloatLanes) {
        if constexpr (kRule != Rule::kSgd) {
            step_moments<kRule>(part, at, part.fetch_ahead);
        } else if (part.first != nullptr) {
            step_sgd<true>(part, at, part.fetch_ahead);
        } else {
            step_sgd<false>(part, at, part.fetch_ahead);
        }
    }
    if (whole == part.count) return;
    StepPart rest = part;
    rest.gradient += whole;
    rest.parameters += whole;
    if (rest.first != nullptr) rest.first += whole;
    if (rest.second != nullptr) rest.second += whole;
    if (rest.maximum != nullptr) rest.maximum += whole;
    rest.count -= whole;
    kOptimiseScalar.step[static_cast<int>(kRule)](rest);
}

void add_square_vectors(const float* values, std::size_t count, double* lanes) noexcept {
    constexpr std::size_t kDoubles = kWidth / sizeof(double);
    constexpr std::size_t kVectors = kSumLanes / kDoubles;
    typedef float HalfFloats __attribute__((vector_size(Isa::kBytes / 2)));
    using Doubles = Vector<double>;
    Doubles sum[kVectors];
    __builtin_memcpy(sum, lanes, sizeof sum);
    for (std::size_t i = 0; i < count; i += kSumLanes) {
#pragma GCC unroll 4
        for (std::size_t v = 0; v < kVectors; ++v) {
            HalfFloats half;
            __builtin_memcpy(&half, values + i + v * kDoubles, sizeof half);
            const Doubles value = __builtin_convertvector(half, Doubles);
            sum[v] += value * value;
        }
    }
    __builtin_memcpy(lanes, sum, sizeof sum);
}

// f32_to_bf16()
FABRIC_INLINE HalfWords narrowed_bf16(Floats value) {
    const Words bits = (Words)F32Element::pack(value);
    return __builtin_convertvector((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, HalfWords);
}

template <DType kType>
void narrow_vectors(const float* from, std::size_t count, std::uint16_t* to) noexcept {
    constexpr std::size_t kPair = 2 * kFloatLanes;
    const std::size_t whole = count / kPair * kPair;
    for (std::size_t at = 0; at < whole; at += kPair) {
        const char* pair = reinterpret_cast<const char*>(from + at);
        const Floats first = load_vector<Floats>(pair);
        const Floats second = load_vector<Floats>(pair + kWidth);
        char* out = reinterpret_cast<char*>(to + at);
        if constexpr (kType == DType::kF16) {
            store_vector(out, F16Element::pack({first, second}));
        } else {
            store_vector(out, narrowed_bf16(first));
            store_vector(out + kWidth / 2, narrowed_bf16(second));
        }
    }
    if (whole == count) return;
    kOptimiseScalar.narrow[copy_index(kType)](from + whole, count - whole, to + whole);
}

template <int... kTypes, int... kRules, int... kCopies>
constexpr OptimiseTable make_optimise_table(std::integer_sequence<int, kTypes...>,
                                            std::integer_sequence<int, kRules...>,
                                            std::integer_sequence<int, kCopies...>) {
    return {{merge_vectors<kGradientTypes[kTypes]>...},
            {step_vectors<static_cast<Rule>(kRules)>...},
            {narrow_vectors<kCopyTypes[kCopies]>...},
            add_square_vectors};
}

constexpr OptimiseTable make_optimise_table() {
    return make_optimise_table(std::make_integer_sequence<int, kGradientTypeCount>(),
                               std::make_integer_sequence<int, kRuleCount>(),
                               std::make_integer_sequence<int, kCopyTypeCount>());
}

}  // namespace
}  // namespace kernels
