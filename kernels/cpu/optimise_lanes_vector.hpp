// What an optimiser step needs of a register full of elements. See vector.hpp for how this file is
// compiled.

#pragma once

#include "kernels/cpu/vector.hpp"

namespace kernels {
namespace {

struct Half {
    [[gnu::always_inline]] static float widen(std::uint16_t half) { return _cvtsh_ss(half); }
    [[gnu::always_inline]] static std::uint16_t narrow(float value) {
        return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
    }
};

struct WideLanes {
    using Value = Vector<float>;
    using Words = Vector<std::uint32_t>;
    static constexpr std::size_t kLanes = kWidth / sizeof(float);
    typedef std::uint16_t Halves __attribute__((vector_size(kWidth / 2)));

    FABRIC_INLINE static Value load(const float* from) {
        return load_vector<Value>(reinterpret_cast<const char*>(from));
    }
    FABRIC_INLINE static void store(float* to, Value value) {
        store_vector(reinterpret_cast<char*>(to), value);
    }
    FABRIC_INLINE static Value root(Value value) { return (Value)Isa::root(value); }

    template <DType kType>
    FABRIC_INLINE static Value widen(const void* from, std::size_t at) {
        const char* start = static_cast<const char*>(from) + at * size_of(kType);
        if constexpr (kType == DType::kF32) {
            return load_vector<Value>(start);
        } else if constexpr (kType == DType::kF16) {
            return (Value)Isa::widen_f16(start);
        } else {
            return (Value)(__builtin_convertvector(load_vector<Halves>(start), Words) << 16);
        }
    }
    FABRIC_INLINE static void store_bf16(std::uint16_t* to, Value value) {
        const Words bits = (Words)value;
        const Words nan = Words{} + kTileNanBF16;
        const Words rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        const Words kept = value == value ? rounded : nan;
        store_vector(reinterpret_cast<char*>(to), __builtin_convertvector(kept, Halves));
    }
    FABRIC_INLINE static void store_f16(std::uint16_t* to, Value value) {
        // A NaN before it is narrowed: the instruction would keep its payload.
        const Value nan = (Value)(Words{} + 0x7fc00000u);
        const Value kept = value == value ? value : nan;
        const auto twice = Isa::narrow_f16(kept, kept);
        __builtin_memcpy(to, &twice, kWidth / 2);
    }
};

}  // namespace
}  // namespace kernels
