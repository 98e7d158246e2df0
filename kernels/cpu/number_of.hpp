// The C++ type of an element type, where the language has one: all integers, f32 and f64. Of any
// other it is void.

#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/dtype.hpp"

namespace kernels {

namespace detail {

template <std::size_t kSize, bool kSigned>
struct IntegerOf {
    using type = void;
};
// clang-format off
template <> struct IntegerOf<1, true> { using type = std::int8_t; };
template <> struct IntegerOf<2, true> { using type = std::int16_t; };
template <> struct IntegerOf<4, true> { using type = std::int32_t; };
template <> struct IntegerOf<8, true> { using type = std::int64_t; };
template <> struct IntegerOf<1, false> { using type = std::uint8_t; };
template <> struct IntegerOf<2, false> { using type = std::uint16_t; };
template <> struct IntegerOf<4, false> { using type = std::uint32_t; };
template <> struct IntegerOf<8, false> { using type = std::uint64_t; };
// clang-format on

template <DType kType>
constexpr auto number_of() {
    constexpr DTypeRow kRow = row_of(kType);
    if constexpr (kRow.kind == Class::kSigned || kRow.kind == Class::kUnsigned) {
        using Number = typename IntegerOf<kRow.size, kRow.kind == Class::kSigned>::type;
        return std::type_identity<Number>{};
    } else if constexpr (kRow.kind == Class::kFloat && kRow.size == sizeof(double)) {
        return std::type_identity<double>{};
    } else if constexpr (kRow.kind == Class::kFloat && kRow.size == sizeof(float)) {
        return std::type_identity<float>{};
    } else {
        return std::type_identity<void>{};
    }
}

}  // namespace detail

template <DType kType>
using NumberOf = typename decltype(detail::number_of<kType>())::type;

}  // namespace kernels
