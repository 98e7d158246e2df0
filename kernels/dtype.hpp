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
    // A value and the index of where it is, as the C structs of fabricshm.h lay them out: for
    // kMinLoc and kMaxLoc. Those of 16 bytes end with 4 bytes of padding.
    kF64Loc = 10,
    kF32Loc = 11,
    kI32Loc = 12,
    kI64Loc = 13,
};
inline constexpr int kDTypeCount = 14;
/// The types before this one are single numbers: what tensors and shards are made of.
inline constexpr int kNumberTypeCount = 10;

enum class ReduceOp : std::uint8_t {
    kSum = 0,
    kAvg = 1,  // the sum divided by ReduceJob::divisor; integers truncate towards zero
    kMin = 2,
    kMax = 3,
    kProd = 4,
    kBand = 5,  // the three bit operations are for integers only
    kBor = 6,
    kBxor = 7,
    kLand = 8,  // the three logical ones, too: 0 is false, all else true, and true is stored as 1
    kLor = 9,
    kLxor = 10,
    kMinLoc = 11,  // for values with an index; of equal values that with the lowest index
    kMaxLoc = 12,
};
inline constexpr int kReduceOpCount = 13;

constexpr std::size_t size_of(DType type) noexcept {
    constexpr std::size_t kSizes[kDTypeCount] = {8, 4, 2, 2, 1, 1, 4, 4, 8, 8, 16, 8, 8, 16};
    return kSizes[static_cast<std::size_t>(type)];
}

constexpr bool is_float(DType type) noexcept {
    return static_cast<int>(type) <= static_cast<int>(DType::kBF16);
}

/// A value with an index.
constexpr bool is_located(DType type) noexcept {
    return static_cast<int>(type) >= kNumberTypeCount;
}

/// Bits and truth are those of integers, and places those of values with an index, for which
/// nothing else is defined.
constexpr bool is_supported(DType type, ReduceOp op) noexcept {
    const bool of_places = op == ReduceOp::kMinLoc || op == ReduceOp::kMaxLoc;
    if (is_located(type) || of_places) return is_located(type) && of_places;
    return !(is_float(type) && static_cast<int>(op) >= static_cast<int>(ReduceOp::kBand));
}

}  // namespace kernels
