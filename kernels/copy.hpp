// Copies that choose whether to leave the cache alone.

#pragma once

#include <cstddef>

namespace kernels {

/// Copies `bytes` from `source` to `destination`, which do not overlap. With `streaming` the stores
/// go past the cache (worth it once the working set exceeds it) and end with a store fence, so that
/// a following release store orders them. Any alignment, any size. Pure and thread-safe.
void copy(void* destination, const void* source, std::size_t bytes, bool streaming) noexcept;

/// The same to several destinations in one pass over the source.
void copy_to_all(void* const* destinations, int destination_count, const void* source,
                 std::size_t bytes, bool streaming) noexcept;

}  // namespace kernels
