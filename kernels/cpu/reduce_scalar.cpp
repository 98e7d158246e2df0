#include "kernels/cpu/reduce_scalar.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cpu/float8.hpp"
#include "kernels/cpu/half.hpp"
#include "kernels/cpu/kernel_set.hpp"
#include "kernels/cpu/number_of.hpp"

namespace kernels {

namespace {

// How one element type is read, computed with and written back. memcpy: sources need only be
// aligned to the element, and their effective type is the caller's business.
template <class T>
struct Plain {
    static_assert(!std::is_void_v<T>, "a type that C++ has no number for needs an element here");
    using Stored = T;
    using Value = T;
    static Value widen(Stored stored) noexcept { return stored; }
    // One NaN, whatever the sources' were: every kernel gives the same bits.
    static Stored narrow(Value value) noexcept {
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
    static Value widen(Stored stored) noexcept { return Format::widen(stored); }
    static Stored narrow(Value value) noexcept { return Format::narrow(value); }
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
    static Value widen(Stored stored) noexcept { return f16_to_f32(stored); }
    static Stored narrow(Value value) noexcept { return f32_to_f16(value); }
};

template <>
struct ElementOf<DType::kBF16> {
    using Stored = std::uint16_t;
    using Value = float;
    static Value widen(Stored stored) noexcept { return bf16_to_f32(stored); }
    static Stored narrow(Value value) noexcept { return f32_to_bf16(value); }
};

// A value with an index. Padding is written as zeros, so that equal results have equal bits.
template <class T>
struct Located {
    struct Value {
        T value;
        std::int32_t index;
    };
    using Stored = std::array<char, sizeof(Value)>;
    static Value widen(const Stored& stored) noexcept {
        Value pair;
        std::memcpy(&pair, stored.data(), sizeof pair);
        return pair;
    }
    static Stored narrow(const Value& pair) noexcept {
        Stored stored{};
        const T value = Plain<T>::narrow(pair.value);
        std::memcpy(stored.data(), &value, sizeof value);
        std::memcpy(stored.data() + sizeof value, &pair.index, sizeof pair.index);
        return stored;
    }
};

// clang-format off
template <> struct ElementOf<DType::kF64Loc> : Located<double> {};
template <> struct ElementOf<DType::kF32Loc> : Located<float> {};
template <> struct ElementOf<DType::kI32Loc> : Located<std::int32_t> {};
template <> struct ElementOf<DType::kI64Loc> : Located<std::int64_t> {};
// clang-format on

// -0 counts as less than +0, and any NaN wins: the minimum and maximum of IEEE 754-2019.
template <class Value>
Value minimum(Value a, Value b) noexcept {
    if constexpr (std::is_floating_point_v<Value>) {
        if (a != a || b != b) return a + b;
        if (a == b) return std::signbit(a) ? a : b;
    }
    return a < b ? a : b;
}

template <class Value>
Value maximum(Value a, Value b) noexcept {
    if constexpr (std::is_floating_point_v<Value>) {
        if (a != a || b != b) return a + b;
        if (a == b) return std::signbit(a) ? b : a;
    }
    return a > b ? a : b;
}

// Sums and products of integers wrap, so they are taken modulo 2^64 and cut to size: signed
// overflow would be undefined.
template <ReduceOp kOp, class Value>
Value combine(Value a, Value b) noexcept {
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
int compare(Value a, Value b) noexcept {
    if constexpr (std::is_floating_point_v<Value>) {
        const bool nan_a = a != a, nan_b = b != b;
        if (nan_a || nan_b) return nan_a - nan_b;
        if (a == b) return (std::signbit(a) - std::signbit(b)) * (kLargest ? -1 : 1);
    }
    if (a == b) return 0;
    return (a < b) != kLargest ? 1 : -1;
}

template <bool kLargest, class Pair>
Pair combine_located(const Pair& a, const Pair& b) noexcept {
    const int better = compare<kLargest>(a.value, b.value);
    const bool first = better > 0 || (better == 0 && a.index <= b.index);
    return first ? a : b;
}

template <class Value>
Value divide(Value sum, int divisor) noexcept {
    if constexpr (std::is_floating_point_v<Value>) {
        return sum / static_cast<Value>(divisor);
    } else {
        // In 64 bits, because a world of 300 ranks does not fit a u8.
        using Wide = std::conditional_t<std::is_signed_v<Value>, std::int64_t, std::uint64_t>;
        return static_cast<Value>(static_cast<Wide>(sum) / static_cast<Wide>(divisor));
    }
}

template <class Element>
typename Element::Value load(const void* base, std::size_t index) noexcept {
    typename Element::Stored stored;
    std::memcpy(&stored, static_cast<const char*>(base) + index * sizeof stored, sizeof stored);
    return Element::widen(stored);
}

// In the order of the sources, which is that of the ranks. The vector kernels do the same.
template <class Element, ReduceOp kOp>
void reduce_elements(const ReduceJob& job, std::size_t begin, std::size_t end) noexcept {
    for (std::size_t i = begin; i < end; ++i) {
        auto value = load<Element>(job.sources[0], i);
        for (int s = 1; s < job.source_count; ++s) {
            const auto next = load<Element>(job.sources[s], i);
            if constexpr (kOp == ReduceOp::kMinLoc || kOp == ReduceOp::kMaxLoc) {
                value = combine_located<kOp == ReduceOp::kMaxLoc>(value, next);
            } else {
                value = combine<kOp>(value, next);
            }
        }
        if constexpr (kOp == ReduceOp::kAvg) value = divide(value, job.divisor);
        const typename Element::Stored result = Element::narrow(value);
        for (int d = 0; d < job.destination_count; ++d) {
            std::memcpy(static_cast<char*>(job.destinations[d]) + i * sizeof result, &result,
                        sizeof result);
        }
    }
}

using RangeFunction = void (*)(const ReduceJob&, std::size_t, std::size_t) noexcept;

template <DType kType, ReduceOp kOp>
constexpr RangeFunction range_function() {
    if constexpr (is_supported(kType, kOp)) {
        static_assert(sizeof(typename ElementOf<kType>::Stored) == size_of(kType));
        return reduce_elements<ElementOf<kType>, kOp>;
    } else {
        return nullptr;
    }
}

struct RangeTable {
    RangeFunction function[kDTypeCount][kReduceOpCount] = {};
};

template <int... kPairs>
constexpr RangeTable make_range_table(std::integer_sequence<int, kPairs...>) {
    constexpr int kOps = kReduceOpCount;
    RangeTable table;
    ((table.function[kPairs / kOps][kPairs % kOps] =
          range_function<static_cast<DType>(kPairs / kOps),
                         static_cast<ReduceOp>(kPairs % kOps)>()),
     ...);
    return table;
}

constexpr RangeTable kRanges =
    make_range_table(std::make_integer_sequence<int, kDTypeCount * kReduceOpCount>());

void reduce_all(const ReduceJob& job) noexcept {
    reduce_scalar_range(job, 0, job.count);
}

constexpr ReduceTable make_table() {
    ReduceTable table = {};
    for (int type = 0; type < kDTypeCount; ++type) {
        for (int op = 0; op < kReduceOpCount; ++op) {
            if (is_supported(static_cast<DType>(type), static_cast<ReduceOp>(op))) {
                table.function[type][op] = reduce_all;
            }
        }
    }
    return table;
}

}  // namespace

constexpr ReduceTable kReduceScalar = make_table();
static_assert(is_complete(kReduceScalar));

void reduce_scalar_range(const ReduceJob& job, std::size_t begin, std::size_t end) noexcept {
    kRanges.function[static_cast<int>(job.type)][static_cast<int>(job.op)](job, begin, end);
}

}  // namespace kernels
