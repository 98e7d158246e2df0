// Symmetric matrices as their lower triangle: element (i, j), j <= i, of an n x n matrix that lies
// row by row is element i (i + 1) / 2 + j of its packed form.

#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.hpp"

namespace kernels {

/// Elements of the packed form. `n` is below 2^31, so that it cannot wrap.
constexpr std::uint64_t packed_count(std::uint64_t n) noexcept {
    return n * (n + 1) / 2;
}

/// Copies the lower triangle of `full` to `packed`, which must not overlap. The upper one is not
/// read. kF32 and kF64, as below; other types are a bug of the caller and abort. Pure, thread-safe.
void pack_lower(DType type, const void* full, std::size_t n, void* packed) noexcept;

/// The way back: both triangles of `full`, the upper one as the mirror image.
void unpack_symmetric(DType type, const void* packed, std::size_t n, void* full) noexcept;

/// Copies the lower triangle of `full` to its upper one.
void mirror_lower(DType type, void* full, std::size_t n) noexcept;

}  // namespace kernels
