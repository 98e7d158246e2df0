// The element types and reduction operations every kernel speaks of.

#pragma once

#include <cstddef>
#include <cstdint>

namespace kernels {

/// The values are those of the C ABI (fabricshm.h) and of the wire; they never change.
enum class DType : std::uint8_t {
    kF64 = 0,
    kF32 = 1,
    kF16 = 2,
    kBF16 = 3,
    kI8 = 4,
    kU8 = 5,
    kI32 = 6,
    kU32 = 7,
    kI64 = 8,
    kU64 = 9,
};
inline constexpr int kDTypeCount = 10;

enum class ReduceOp : std::uint8_t {
    kSum = 0,
    kAvg = 1,  // the sum divided by ReduceJob::divisor; integers truncate towards zero
    kMin = 2,
    kMax = 3,
    kProd = 4,
    kBand = 5,  // the three bit operations are for integers only
    kBor = 6,
    kBxor = 7,
};
inline constexpr int kReduceOpCount = 8;

constexpr std::size_t size_of(DType type) noexcept {
    constexpr std::size_t kSizes[kDTypeCount] = {8, 4, 2, 2, 1, 1, 4, 4, 8, 8};
    return kSizes[static_cast<std::size_t>(type)];
}

constexpr bool is_float(DType type) noexcept {
    return static_cast<int>(type) <= static_cast<int>(DType::kBF16);
}

/// Bit operations have no meaning on floating point; everything else is defined everywhere.
constexpr bool is_supported(DType type, ReduceOp op) noexcept {
    return !(is_float(type) && static_cast<int>(op) >= static_cast<int>(ReduceOp::kBand));
}

}  // namespace kernels
