// Numbers as elements of any type, in arithmetic of its own: what outputs of the library are
// compared with.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/dtype.hpp"

namespace bench {

/// The code of `value` in the format of `row`, a float of fewer than 32 bits: the nearest, of two
/// equally near the even one.
inline std::uint32_t small_float(const kernels::DTypeRow& row, double value) {
    const int mantissa = row.mantissa_bits;
    const int bias = (1 << (row.exponent_bits - 1)) - 1;
    const std::uint32_t sign = std::signbit(value) ? 1u << (row.size * 8 - 1) : 0;
    if (value == 0) return sign;
    int exponent = 0;
    std::frexp(value, &exponent);  // |value| = f * 2^exponent, f in [0.5, 1)
    const int unit = std::max(exponent - 1, 1 - bias) - mantissa;  // of its last place
    // Codes follow each other as integers do, so a carry raises the exponent by itself.
    const auto places =
        static_cast<std::uint32_t>(std::nearbyint(std::ldexp(std::fabs(value), -unit)));
    const auto steps = static_cast<std::uint32_t>(unit + mantissa + bias - 1) << mantissa;
    const std::uint32_t code = steps + places;
    const std::uint32_t infinity = ((1u << row.exponent_bits) - 1) << mantissa;
    const std::uint32_t last = (1u << (row.exponent_bits + mantissa)) - 1;  // NaN, and no sign
    if (row.infinity) return sign | std::min(code, infinity);
    return code < last ? sign | code : last;
}

/// Writes `value`, a whole number where the type has no others, as an element of `type`, which is a
/// number.
inline void store_element(void* to, kernels::DType type, double value) {
    const kernels::DTypeRow& row = kernels::row_of(type);
    const auto whole = static_cast<std::int64_t>(value);
    const auto single = static_cast<float>(value);
    if (row.kind != kernels::Class::kFloat) {
        std::memcpy(to, &whole, row.size);  // the lower bytes, which come first
    } else if (row.size == sizeof value) {
        std::memcpy(to, &value, sizeof value);
    } else if (row.size == sizeof single) {
        std::memcpy(to, &single, sizeof single);
    } else {
        const std::uint32_t code = small_float(row, value);
        std::memcpy(to, &code, row.size);
    }
}

}  // namespace bench
