// Floats of 8 bits in plain integer arithmetic: what every faster conversion must equal.

#pragma once

#include <cstdint>

#include "kernels/cpu/half.hpp"

namespace kernels {

/// The one NaN that kernels write in a format of 8 bits, as PyTorch's conversions do.
inline constexpr std::uint8_t kNanF8 = 0x7f;

/// A format of a sign, `kExponent` and `kMantissa` bits. Without `kInfinity` every code of the
/// largest exponent is a number but the last, which is NaN (the "fn" of float8_e4m3fn).
template <int kExponent, int kMantissa, bool kInfinity>
struct Float8 {
    static_assert(kExponent + kMantissa == 7);
    static constexpr int kDropped = 23 - kMantissa;  // bits of an f32's mantissa
    static constexpr int kBias = (1 << (kExponent - 1)) - 1;
    static constexpr int kBiasGap = 127 - kBias;
    static constexpr std::uint32_t kInfinityCode = ((1u << kExponent) - 1) << kMantissa;
    /// The first code that is no finite number, without its sign.
    static constexpr std::uint32_t kBeyond = kInfinity ? kInfinityCode : 0x7f;
    /// In f32: the smallest that has a leading one.
    static constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(kBiasGap + 1) << 23;

    /// Exact: every one is an f32.
    static constexpr float widen(std::uint8_t code) noexcept {
        const std::uint32_t magnitude = code & 0x7fu;
        std::uint32_t bits = (magnitude << kDropped) + (static_cast<std::uint32_t>(kBiasGap) << 23);
        if (magnitude >= kBeyond) {
            bits = kInfinity && magnitude == kInfinityCode ? 0x7f800000u : kNanF32;
        } else if (magnitude < (1u << kMantissa)) {
            // 2^(1 - kBias - kMantissa)
            constexpr auto kUnit = static_cast<std::uint32_t>(127 + 1 - kBias - kMantissa) << 23;
            const auto unit = bits_as<float>(kUnit);
            bits = bits_as<std::uint32_t>(static_cast<float>(magnitude) * unit);
        }
        return bits_as<float>(bits | static_cast<std::uint32_t>(code & 0x80u) << 24);
    }

    /// To nearest, ties to even. What rounds beyond the largest becomes infinity, or NaN in a
    /// format without one; every NaN becomes kNanF8.
    static constexpr std::uint8_t narrow(float value) noexcept {
        const auto bits = bits_as<std::uint32_t>(value);
        const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80u);
        const std::uint32_t magnitude = bits & 0x7fffffffu;
        if (magnitude > 0x7f800000u) return kNanF8;
        const std::uint32_t code =
            magnitude < kSmallestNormal ? small(magnitude) : normal(magnitude);
        if (code < kBeyond) return static_cast<std::uint8_t>(sign | code);
        return kInfinity ? static_cast<std::uint8_t>(sign | kInfinityCode) : kNanF8;
    }

  private:
    static constexpr std::uint32_t normal(std::uint32_t magnitude) noexcept {
        const std::uint32_t rebased = magnitude - (static_cast<std::uint32_t>(kBiasGap) << 23);
        // See f32_to_bf16(): a carry out of the mantissa raises the exponent.
        const std::uint32_t up = (1u << (kDropped - 1)) - 1 + (rebased >> kDropped & 1u);
        return (rebased + up) >> kDropped;
    }
    static constexpr std::uint32_t small(std::uint32_t magnitude) noexcept {
        // By how many bits more than a normal one's the mantissa is cut.
        const std::uint32_t shift = kDropped + (kBiasGap + 1) - (magnitude >> 23);
        if (shift > 24) return 0;  // below half the smallest
        const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
        const std::uint32_t kept = mantissa >> shift;
        const std::uint32_t dropped = mantissa & ((1u << shift) - 1);
        const std::uint32_t half = 1u << (shift - 1);
        return kept + (dropped > half || (dropped == half && (kept & 1u) != 0) ? 1 : 0);
    }
};

}  // namespace kernels
