// The 16-bit float formats in plain integer arithmetic: what every faster conversion must equal.
// Functions are constexpr so that CUDA kernels can call them, too.

#pragma once

#include <bit>
#include <cstdint>

namespace kernels {

/// The one NaN that arithmetic kernels write: quiet, positive, no payload. Hardware would pass on
/// the payload of whichever operand the compiler happened to put first.
inline constexpr std::uint64_t kNanF64 = 0x7ff8000000000000u;
inline constexpr std::uint32_t kNanF32 = 0x7fc00000u;
inline constexpr std::uint16_t kNanF16 = 0x7e00u;
inline constexpr std::uint16_t kNanBF16 = 0x7fc0u;

template <class To, class From>
constexpr To bits_as(From value) noexcept {
    return std::bit_cast<To>(value);
}

constexpr float bf16_to_f32(std::uint16_t half) noexcept {
    return bits_as<float>(static_cast<std::uint32_t>(half) << 16);
}

/// To nearest, ties to even; overflow becomes infinity; every NaN becomes kNanBF16.
constexpr std::uint16_t f32_to_bf16(float value) noexcept {
    const auto bits = bits_as<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return kNanBF16;
    // Half of the dropped part's range, less one when the kept part is even: ties fall to even.
    // A carry out of the mantissa raises the exponent, which is what rounding up means.
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Exact: every f16 is an f32. A signalling NaN becomes quiet.
constexpr float f16_to_f32(std::uint16_t half) noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fu;
    std::uint32_t mantissa = half & 0x3ffu;
    if (exponent == 31) {
        if (mantissa != 0) mantissa |= 0x200u;
        return bits_as<float>(sign | 0x7f800000u | (mantissa << 13));
    }
    // The biases are 15 and 127, the mantissas have 10 and 23 bits.
    if (exponent != 0) return bits_as<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
    if (mantissa == 0) return bits_as<float>(sign);
    std::uint32_t shifted_exponent = 113;  // subnormal: shift until the leading one is implicit
    while ((mantissa & 0x400u) == 0) {
        mantissa <<= 1;
        --shifted_exponent;
    }
    return bits_as<float>(sign | (shifted_exponent << 23) | ((mantissa & 0x3ffu) << 13));
}

/// To nearest, ties to even; from 65520 on infinity; every NaN becomes kNanF16.
constexpr std::uint16_t f32_to_f16(float value) noexcept {
    const auto bits = bits_as<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return kNanF16;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520, halfway past the largest
    std::uint32_t kept = 0, dropped = 0, half = 0;
    if (magnitude >= 0x38800000u) {  // 2^-14, the smallest normal f16
        kept = (magnitude - 0x38000000u) >> 13;
        dropped = magnitude & 0x1fffu;
        half = 0x1000u;
    } else {
        const std::uint32_t shift = 126 - (magnitude >> 23);  // 14 at 2^-15, more below
        if (shift > 24) return sign;                          // below half the smallest subnormal
        const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
        kept = mantissa >> shift;
        dropped = mantissa & ((1u << shift) - 1);
        half = 1u << (shift - 1);
    }
    // A carry out of the mantissa raises the exponent, here too.
    if (dropped > half || (dropped == half && (kept & 1u) != 0)) ++kept;
    return static_cast<std::uint16_t>(sign | kept);
}

}  // namespace kernels
