// Elements of every type and what a reduction over ranks makes of them, bit for bit, written apart
// from the kernels: sums in the order of ranks, of small floats in f32 and rounded once; of values
// with an index the least.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/dtype.hpp"

namespace test_support::apart {

inline std::uint64_t scramble(int rank, std::uint64_t i) {
    std::uint64_t x =
        (i + 1) * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(rank) * 0x5851f42dU;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9U;
    return x ^ x >> 29;
}

inline kernels::ReduceOp op_of(kernels::DType type) {
    return kernels::is_located(type) ? kernels::ReduceOp::kMinLoc : kernels::ReduceOp::kSum;
}

/// Bytes of an element that have a meaning: not the padding.
inline std::size_t bytes_of(kernels::DType type) {
    const std::size_t size = kernels::size_of(type);
    return size == 16 ? 12 : size;
}

// A float of less than 4 bytes near 1: no sum of a few is too large, or subnormal.
inline std::uint64_t small_code(const kernels::DTypeRow& row, int rank, std::uint64_t i) {
    const std::uint64_t x = scramble(rank, i);
    const std::uint64_t bias = (std::uint64_t{1} << (row.exponent_bits - 1)) - 1;
    const std::uint64_t exponent = bias - 1 + x % 3;
    const std::uint64_t mantissa = x >> 8 & ((std::uint64_t{1} << row.mantissa_bits) - 1);
    const std::uint64_t sign = x >> 40 & 1;
    return ((sign << row.exponent_bits | exponent) << row.mantissa_bits) | mantissa;
}

inline float decoded(const kernels::DTypeRow& row, std::uint64_t code) {
    const std::uint64_t mantissa = code & ((std::uint64_t{1} << row.mantissa_bits) - 1);
    const std::uint64_t exponent =
        code >> row.mantissa_bits & ((std::uint64_t{1} << row.exponent_bits) - 1);
    const int bias = (1 << (row.exponent_bits - 1)) - 1;
    const float value = std::ldexp(1 + std::ldexp(static_cast<float>(mantissa), -row.mantissa_bits),
                                   static_cast<int>(exponent) - bias);
    return (code >> (row.exponent_bits + row.mantissa_bits) & 1) != 0 ? -value : value;
}

// To the nearest, of two the even.
inline std::uint64_t encoded(const kernels::DTypeRow& row, float value) {
    const std::uint64_t sign = std::signbit(value) ? 1 : 0;
    std::uint64_t rest = 0;
    if (value != 0) {
        int exponent = 0;
        const float part = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
        const float digits = std::nearbyint(std::ldexp(part, row.mantissa_bits + 1));
        const int bias = (1 << (row.exponent_bits - 1)) - 1;
        // The leading digit, which is not stored, adds one to the exponent; a carry another.
        rest = (static_cast<std::uint64_t>(exponent - 2 + bias) << row.mantissa_bits) +
               static_cast<std::uint64_t>(digits);
    }
    return sign << (row.exponent_bits + row.mantissa_bits) | rest;
}

template <typename Value>
void store(std::byte* at, Value value) {
    std::memcpy(at, &value, sizeof value);
}

template <typename Float>
Float float_of(int rank, std::uint64_t i) {
    return (static_cast<Float>(rank) + static_cast<Float>(0.3)) / (static_cast<Float>(i % 89) + 7);
}

template <typename Float>
Float float_sum(int world, std::uint64_t i) {
    Float sum = float_of<Float>(0, i);
    for (int rank = 1; rank < world; ++rank) sum = sum + float_of<Float>(rank, i);
    return sum;
}

inline std::int32_t located_value(int rank, std::uint64_t i) {
    return static_cast<std::int32_t>(scramble(rank, i) % 3) - 1;  // often equal
}
inline std::int32_t located_index(int rank) {
    return 100 - rank;
}

inline void store_located(kernels::DType type, std::byte* at, std::int32_t value,
                          std::int32_t index) {
    std::size_t skip = 4;
    switch (type) {
        case kernels::DType::kF64Loc:
            store(at, static_cast<double>(value));
            skip = 8;
            break;
        case kernels::DType::kF32Loc:
            store(at, static_cast<float>(value));
            break;
        case kernels::DType::kI64Loc:
            store(at, static_cast<std::int64_t>(value));
            skip = 8;
            break;
        default:
            store(at, value);
            break;
    }
    store(at + skip, index);
}

/// Element `i` of what `rank` gives.
inline void give(kernels::DType type, std::byte* at, int rank, std::uint64_t i) {
    const kernels::DTypeRow& row = kernels::row_of(type);
    std::memset(at, 0, row.size);
    if (kernels::is_located(type)) {
        return store_located(type, at, located_value(rank, i), located_index(rank));
    }
    if (type == kernels::DType::kF64) return store(at, float_of<double>(rank, i));
    if (type == kernels::DType::kF32) return store(at, float_of<float>(rank, i));
    const std::uint64_t bits =
        kernels::is_float(type) ? small_code(row, rank, i) : scramble(rank, i);
    std::memcpy(at, &bits, row.size);
}

/// What op_of() makes of element `i` of all ranks.
inline void combine(kernels::DType type, std::byte* at, int world, std::uint64_t i) {
    const kernels::DTypeRow& row = kernels::row_of(type);
    std::memset(at, 0, row.size);
    if (kernels::is_located(type)) {
        int best = 0;
        for (int rank = 1; rank < world; ++rank) {
            const bool is_less = located_value(rank, i) < located_value(best, i);
            const bool is_equal = located_value(rank, i) == located_value(best, i);
            if (is_less || (is_equal && located_index(rank) < located_index(best))) best = rank;
        }
        return store_located(type, at, located_value(best, i), located_index(best));
    }
    if (type == kernels::DType::kF64) return store(at, float_sum<double>(world, i));
    if (type == kernels::DType::kF32) return store(at, float_sum<float>(world, i));
    std::uint64_t bits = 0;
    if (kernels::is_float(type)) {
        float sum = decoded(row, small_code(row, 0, i));
        for (int rank = 1; rank < world; ++rank) sum += decoded(row, small_code(row, rank, i));
        bits = encoded(row, sum);
    } else {
        for (int rank = 0; rank < world; ++rank) bits += scramble(rank, i);  // modulo its width
    }
    std::memcpy(at, &bits, row.size);
}

/// `count` elements that `rank` gives, the first of them element `first`.
inline void give_all(kernels::DType type, std::byte* at, int rank, std::uint64_t first,
                     std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
        give(type, at + i * kernels::size_of(type), rank, first + i);
    }
}

/// Of `count` elements at `at`, those that differ from `expected(where, i)`.
template <typename Expected>
std::uint64_t wrong(kernels::DType type, const std::byte* at, std::uint64_t count,
                    const Expected& expected) {
    std::uint64_t all = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
        std::byte right[16];
        expected(right, i);
        if (std::memcmp(at + i * kernels::size_of(type), right, bytes_of(type)) != 0) ++all;
    }
    return all;
}

}  // namespace test_support::apart
