// The element types and the operations of a reduction, one element at a time: the definition of
// right. The scalar kernel and those of CUDA are made of it, so all of it is constexpr, which nvcc
// compiles for both.

#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/float8.hpp"
#include "kernels/cpu/half.hpp"
#include "kernels/cpu/number_of.hpp"

namespace kernels::scalar {

// How one element type is computed with: what is stored is widened to a value, and a value narrowed
// to what is stored.
template <class T>
struct Plain {
    static_assert(!std::is_void_v<T>, "a type that C++ has no number for needs an element here");
    using Stored = T;
    using Value = T;
    static constexpr Value widen(Stored stored) noexcept { return stored; }
    // One NaN, whatever the sources' were: every kernel gives the same bits.
    static constexpr Stored narrow(Value value) noexcept {
        if constexpr (std::is_same_v<T, float>) {
            return value != value ? bits_as<float>(kNanF32) : value;
        } else if constexpr (std::is_same_v<T, double>) {
            return value != value ? bits_as<double>(kNanF64) : value;
        } else {
            return value;
        }
    }
};

template <DType kType>
struct Small {
    static constexpr DTypeRow kRow = row_of(kType);
    using Format = Float8<kRow.exponent_bits, kRow.mantissa_bits, kRow.infinity>;
    using Stored = std::uint8_t;
    using Value = float;
    static constexpr Value widen(Stored stored) noexcept { return Format::widen(stored); }
    static constexpr Stored narrow(Value value) noexcept { return Format::narrow(value); }
};

// How each type is computed with. Integers, ordinary floats and those of 8 bits need nothing but
// their row.
template <DType kType>
struct ElementOf
    : std::conditional_t<is_float(kType) && size_of(kType) == 1, std::type_identity<Small<kType>>,
                         std::type_identity<Plain<NumberOf<kType>>>>::type {};

template <>
struct ElementOf<DType::kF16> {
    using Stored = std::uint16_t;
    using Value = float;
    static constexpr Value widen(Stored stored) noexcept { return f16_to_f32(stored); }
    static constexpr Stored narrow(Value value) noexcept { return f32_to_f16(value); }
};

template <>
struct ElementOf<DType::kBF16> {
    using Stored = std::uint16_t;
    using Value = float;
    static constexpr Value widen(Stored stored) noexcept { return bf16_to_f32(stored); }
    static constexpr Stored narrow(Value value) noexcept { return f32_to_bf16(value); }
};

// A value with an index. Padding is written as zeros, so that equal results have equal bits.
template <class T>
struct Located {
    struct Value {
        T value;
        std::int32_t index;
    };
    struct Short {
        T value;
        std::int32_t index;
    };
    struct Long {
        T value;
        std::int32_t index;
        std::int32_t padding;
    };
    using Stored = std::conditional_t<sizeof(T) == 8, Long, Short>;
    static constexpr Value widen(const Stored& stored) noexcept {
        return {stored.value, stored.index};
    }
    static constexpr Stored narrow(const Value& pair) noexcept {
        Stored stored = {};
        stored.value = Plain<T>::narrow(pair.value);
        stored.index = pair.index;
        return stored;
    }
};

// clang-format off
template <> struct ElementOf<DType::kF64Loc> : Located<double> {};
template <> struct ElementOf<DType::kF32Loc> : Located<float> {};
template <> struct ElementOf<DType::kI32Loc> : Located<std::int32_t> {};
template <> struct ElementOf<DType::kI64Loc> : Located<std::int64_t> {};
// clang-format on

template <class Value>
constexpr bool has_sign(Value value) noexcept {
    using Bits = std::conditional_t<sizeof value == 8, std::int64_t, std::int32_t>;
    return bits_as<Bits>(value) < 0;
}

// -0 counts as less than +0, and any NaN wins: the minimum and maximum of IEEE 754-2019.
template <class Value>
constexpr Value minimum(Value a, Value b) noexcept {
    if constexpr (std::is_floating_point_v<Value>) {
        if (a != a || b != b) return a + b;
        if (a == b) return has_sign(a) ? a : b;
    }
    return a < b ? a : b;
}

template <class Value>
constexpr Value maximum(Value a, Value b) noexcept {
    if constexpr (std::is_floating_point_v<Value>) {
        if (a != a || b != b) return a + b;
        if (a == b) return has_sign(a) ? b : a;
    }
    return a > b ? a : b;
}

// Sums and products of integers wrap, so they are taken modulo 2^64 and cut to size: signed
// overflow would be undefined.
template <ReduceOp kOp, class Value>
constexpr Value combine(Value a, Value b) noexcept {
    if constexpr (kOp == ReduceOp::kMin) return minimum(a, b);
    if constexpr (kOp == ReduceOp::kMax) return maximum(a, b);
    if constexpr (std::is_floating_point_v<Value>) {
        if constexpr (kOp == ReduceOp::kProd) return a * b;
        if constexpr (kOp == ReduceOp::kSum || kOp == ReduceOp::kAvg) return a + b;
    } else {
        const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
        if constexpr (kOp == ReduceOp::kProd) return static_cast<Value>(x * y);
        if constexpr (kOp == ReduceOp::kSum || kOp == ReduceOp::kAvg) {
            return static_cast<Value>(x + y);
        }
        if constexpr (kOp == ReduceOp::kBand) return static_cast<Value>(x & y);
        if constexpr (kOp == ReduceOp::kBor) return static_cast<Value>(x | y);
        if constexpr (kOp == ReduceOp::kBxor) return static_cast<Value>(x ^ y);
        if constexpr (kOp == ReduceOp::kLand) return static_cast<Value>(x != 0 && y != 0);
        if constexpr (kOp == ReduceOp::kLor) return static_cast<Value>(x != 0 || y != 0);
        if constexpr (kOp == ReduceOp::kLxor) return static_cast<Value>((x != 0) != (y != 0));
    }
}

// 1 if `a` is the better one, -1 if `b` is, 0 if they are equal; in the order of minimum() and
// maximum().
template <bool kLargest, class Value>
constexpr int compare(Value a, Value b) noexcept {
    if constexpr (std::is_floating_point_v<Value>) {
        const bool nan_a = a != a, nan_b = b != b;
        if (nan_a || nan_b) return nan_a - nan_b;
        if (a == b) return (has_sign(a) - has_sign(b)) * (kLargest ? -1 : 1);
    }
    if (a == b) return 0;
    return (a < b) != kLargest ? 1 : -1;
}

template <bool kLargest, class Pair>
constexpr Pair combine_located(const Pair& a, const Pair& b) noexcept {
    const int better = compare<kLargest>(a.value, b.value);
    const bool first = better > 0 || (better == 0 && a.index <= b.index);
    return first ? a : b;
}

template <class Value>
constexpr Value divide(Value sum, int divisor) noexcept {
    if constexpr (std::is_floating_point_v<Value>) {
        return sum / static_cast<Value>(divisor);
    } else {
        // In 64 bits, because a world of 300 ranks does not fit a u8.
        using Wide = std::conditional_t<std::is_signed_v<Value>, std::int64_t, std::uint64_t>;
        return static_cast<Value>(static_cast<Wide>(sum) / static_cast<Wide>(divisor));
    }
}

// One more source, in the order of ranks.
template <ReduceOp kOp, class Value>
constexpr Value add_source(const Value& value, const Value& next) noexcept {
    if constexpr (kOp == ReduceOp::kMinLoc || kOp == ReduceOp::kMaxLoc) {
        return combine_located<kOp == ReduceOp::kMaxLoc>(value, next);
    } else {
        return combine<kOp>(value, next);
    }
}

}  // namespace kernels::scalar
