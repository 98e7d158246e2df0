// The operations a register wide. See vector.hpp for how this file is compiled.
// A source passes through before(), is joined to what came earlier by combine(), and the last value
// passes through after().

#pragma once

#include "kernels/cpu/vector.hpp"

namespace kernels {
namespace {

template <class T>
inline constexpr bool kIsFloat = std::is_floating_point_v<T>;

// Unsigned lanes of T's size: sums and products of integers wrap, which signed ones may not.
template <class T>
struct WrappingLane {
    using type = std::make_unsigned_t<T>;
};
template <>
struct WrappingLane<float> {
    using type = float;
};
template <>
struct WrappingLane<double> {
    using type = double;
};
template <class T>
using Wrapping = Vector<typename WrappingLane<T>::type>;

// Bits as integers of the lane's size, to which a comparison's mask can be applied.
template <class V>
using Mask = decltype(V{} == V{});

// x86's minimum returns its second operand for a pair of zeros or a NaN in either. Both orders
// together know: their union is -0 if either is, and a NaN if either is.
template <class T>
FABRIC_INLINE Vector<T> smaller(Vector<T> a, Vector<T> b) {
    using V = Vector<T>;
    const V one = a < b ? a : b;
    if constexpr (!kIsFloat<T>) return one;
    const V other = b < a ? b : a;
    return (V)((Mask<V>)one | (Mask<V>)other);
}

template <ReduceOp kOp, class T>
struct Operation {
    using V = Vector<T>;
    using W = Wrapping<T>;

    // The maximum of floats is the negated minimum of negated ones; see smaller() for why min.
    static constexpr bool kNegate = kOp == ReduceOp::kMax && kIsFloat<T>;
    // Truth is made 0 or 1 of each source; then it is a matter of bits.
    static constexpr bool kTruth =
        kOp == ReduceOp::kLand || kOp == ReduceOp::kLor || kOp == ReduceOp::kLxor;
    FABRIC_INLINE static V before(V value) {
        if constexpr (kTruth) return (V)(value != 0) & 1;
        return kNegate ? -value : value;
    }
    FABRIC_INLINE static V after(V value) { return kNegate ? -value : value; }

    FABRIC_INLINE static V combine(V a, V b) {
        if constexpr (kOp == ReduceOp::kSum || kOp == ReduceOp::kAvg) return (V)((W)a + (W)b);
        if constexpr (kOp == ReduceOp::kProd) return (V)((W)a * (W)b);
        if constexpr (kOp == ReduceOp::kMin || kNegate) return smaller<T>(a, b);
        if constexpr (kOp == ReduceOp::kMax && !kNegate) return a > b ? a : b;
        if constexpr (kOp == ReduceOp::kBand || kOp == ReduceOp::kLand) return a & b;
        if constexpr (kOp == ReduceOp::kBor || kOp == ReduceOp::kLor) return a | b;
        if constexpr (kOp == ReduceOp::kBxor || kOp == ReduceOp::kLxor) return a ^ b;
    }
};

// Division of sums for kAvg. A power of two divides by multiplying: the reciprocal is exact, so the
// rounding is the same, at a fraction of the time.
template <class T>
struct Divider {
    explicit Divider(int divisor)
        : divisor_(divisor), by_multiplying_((divisor & (divisor - 1)) == 0) {
        if constexpr (kIsFloat<T>) reciprocal_ = T{1} / static_cast<T>(divisor);
    }

    FABRIC_INLINE Vector<T> divide(Vector<T> sum) const {
        if constexpr (kIsFloat<T>) {
            if (by_multiplying_) return sum * reciprocal_;
            return sum / static_cast<T>(divisor_);
        } else {
            // In 64 bits and one by one: there is no vector division of integers.
            using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
            for (std::size_t i = 0; i < sizeof sum / sizeof(T); ++i) {
                sum[i] = static_cast<T>(static_cast<Wide>(sum[i]) / static_cast<Wide>(divisor_));
            }
            return sum;
        }
    }

  private:
    int divisor_;
    bool by_multiplying_;
    T reciprocal_ = {};
};

}  // namespace
}  // namespace kernels
