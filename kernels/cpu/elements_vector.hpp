// The element types a register wide. See vector.hpp for how this file is compiled.
// An Element reads one register's worth of stored elements, computes in `Value` (one register, or
// two for the 16-bit floats and four for those of 8 bits, which compute in f32) and packs the
// result into one register.

#pragma once

#include "kernels/cpu/vector.hpp"

namespace kernels {
namespace {

template <class T, class Bits, Bits kNan>
struct FloatElement {
    using Lane = T;
    using Value = Vector<T>;
    static constexpr std::size_t kBytes = sizeof(T);
    static constexpr int kTile = 8;  // registers in flight; 16 exist before AVX-512

    FABRIC_INLINE static Value load(const char* from) { return load_vector<Value>(from); }
    // Comparing with itself finds NaN. One NaN for all, see half.hpp: results do not depend on
    // which set computes them.
    FABRIC_INLINE static Value pack(Value value) {
        const Vector<Bits> nan = Vector<Bits>{} + kNan;
        return value == value ? value : (Value)nan;
    }
};
using F64Element = FloatElement<double, std::uint64_t, kNanF64>;
using F32Element = FloatElement<float, std::uint32_t, kNanF32>;

template <class T>
struct IntegerElement {
    using Lane = T;
    using Value = Vector<T>;
    static constexpr std::size_t kBytes = sizeof(T);
    static constexpr int kTile = 8;

    FABRIC_INLINE static Value load(const char* from) { return load_vector<Value>(from); }
    // Integers wrap around: overflow is the sum modulo 2^bits in every set.
    FABRIC_INLINE static Value pack(Value value) { return value; }
};

using Floats = Vector<float>;
using Words = Vector<std::uint32_t>;

// Two registers of floats for one of 16-bit elements.
struct FloatPair {
    Floats first, second;
};

// A bf16 is the upper half of an f32, so the even and the odd elements of a register become two
// registers of floats by a shift and a mask: nothing crosses lanes.
struct BF16Element {
    using Lane = float;
    using Value = FloatPair;
    static constexpr std::size_t kBytes = 2;
    static constexpr int kTile = 4;

    FABRIC_INLINE static Value load(const char* from) {
        const Words pairs = load_vector<Words>(from);
        return {(Floats)(pairs << 16), (Floats)(pairs & 0xffff0000u)};
    }
    FABRIC_INLINE static Words pack(const Value& value) {
        return (rounded(value.first) >> 16) | (rounded(value.second) & 0xffff0000u);
    }

  private:
    // f32_to_bf16(), the result in the upper half.
    FABRIC_INLINE static Words rounded(Floats value) {
        const Words bits = (Words)value;
        const Words nan = Words{} + kNanF32;
        return value == value ? bits + 0x7fffu + ((bits >> 16) & 1u) : nan;
    }
};

struct F16Element {
    using Lane = float;
    using Value = FloatPair;
    static constexpr std::size_t kBytes = 2;
    static constexpr int kTile = 4;

    FABRIC_INLINE static Value load(const char* from) {
        return {Isa::widen_f16(from), Isa::widen_f16(from + kWidth / 2)};
    }
    // NaN before narrowing: the instruction would keep a payload.
    FABRIC_INLINE static Words pack(const Value& value) {
        return (Words)Isa::narrow_f16(F32Element::pack(value.first),
                                      F32Element::pack(value.second));
    }
};

// Two registers of floats for each of these: four for one of 8-bit elements.
struct FloatQuad {
    FloatPair first, second;
};

// Each word of a register has four elements, and the first of all words become one register of
// floats, the second ones the next: nothing crosses lanes. See float8.hpp for the formats.
template <class Format>
struct Float8Element {
    using Lane = float;
    using Value = FloatQuad;
    static constexpr std::size_t kBytes = 1;
    static constexpr int kTile = 2;

    FABRIC_INLINE static Value load(const char* from) {
        const Words four = load_vector<Words>(from);
        return {{widened(four << 24), widened(four << 16)}, {widened(four << 8), widened(four)}};
    }
    FABRIC_INLINE static Words pack(const Value& value) {
        return narrowed(value.first.first) | narrowed(value.first.second) << 8 |
               narrowed(value.second.first) << 16 | narrowed(value.second.second) << 24;
    }

  private:
    using Signed = Vector<std::int32_t>;  // its comparisons are single instructions
    static constexpr std::uint32_t kGap = Format::kBiasGap;

    // The element is in the upper byte.
    FABRIC_INLINE static Floats widened(Words word) {
        const Words magnitude = word >> 24 & 0x7fu;
        const Words shifted = magnitude << Format::kDropped;
        // Without a leading one: it is put there, and taken away again.
        const Words one = Words{} + ((kGap + 1) << 23);
        const Floats small = (Floats)(shifted + one) - (Floats)one;
        const Signed has_one = (Signed)shifted >= 1 << 23;
        const Words bits = has_one ? shifted + (kGap << 23) : (Words)small;
        const Words beyond = Format::kBeyond == 0x7f ? Words{} + kNanF32 : shifted | 0x7f800000u;
        const Signed finite = (Signed)magnitude < std::int32_t{Format::kBeyond};
        return (Floats)((finite ? bits : beyond) | (word & 0x80000000u));
    }

    // Format::narrow(), the result in the lower byte.
    FABRIC_INLINE static Words narrowed(Floats value) {
        const Words magnitude = (Words)value & 0x7fffffffu;
        const Words rebased = magnitude - (kGap << 23);
        const Words odd = rebased >> Format::kDropped & 1u;
        const Words normal =
            (rebased + ((1u << (Format::kDropped - 1)) - 1) + odd) >> Format::kDropped;
        // The last place of this number is the smallest float of the format: adding rounds to it.
        const Words place = Words{} + ((kGap + 1 + Format::kDropped) << 23);
        const Words small = (Words)((Floats)magnitude + (Floats)place) - place;
        const Signed has_one = (Signed)magnitude >= std::int32_t{Format::kSmallestNormal};
        const Words code = has_one ? normal : small;
        const Words sign = (Words)value >> 24 & 0x80u;
        const Signed finite = (Signed)code < std::int32_t{Format::kBeyond};
        const Words nan = Words{} + kNanF8;
        const Words beyond = Format::kBeyond == 0x7f ? nan : sign | Format::kInfinityCode;
        const Words result = finite ? code | sign : beyond;
        return value == value ? result : nan;
    }
};

// What a type is computed with; void: one by one. Integers and floats of 8 bits need nothing but
// their row.
template <DType kType, bool kBySign>
struct VectorElementOf {
    static constexpr bool kInteger =
        row_of(kType).kind == Class::kSigned || row_of(kType).kind == Class::kUnsigned;
    template <class T>
    struct Integer {
        using type = IntegerElement<std::conditional_t<kBySign, T, std::make_unsigned_t<T>>>;
    };
    template <DType kSmallType>
    struct Small {
        static constexpr DTypeRow kRow = row_of(kSmallType);
        using type = Float8Element<Float8<kRow.exponent_bits, kRow.mantissa_bits, kRow.infinity>>;
    };
    struct None {
        using type = void;
    };
    static constexpr bool kSmall = is_float(kType) && size_of(kType) == 1;
    using Other = std::conditional_t<kSmall, Small<kType>, None>;
    using type = typename std::conditional_t<kInteger, Integer<NumberOf<kType>>, Other>::type;
};
// clang-format off
template <bool kBySign> struct VectorElementOf<DType::kF64, kBySign> { using type = F64Element; };
template <bool kBySign> struct VectorElementOf<DType::kF32, kBySign> { using type = F32Element; };
template <bool kBySign> struct VectorElementOf<DType::kF16, kBySign> { using type = F16Element; };
template <bool kBySign> struct VectorElementOf<DType::kBF16, kBySign> { using type = BF16Element; };
// clang-format on

}  // namespace
}  // namespace kernels
