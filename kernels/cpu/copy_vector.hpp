// Copies to several destinations, once for every register width. See vector.hpp for how this file
// is compiled.

#pragma once

#include "kernels/cpu/vector.hpp"

namespace kernels {
namespace {

// Eight registers in flight hide the latency of one load; a tile is a whole number of cache lines
// at every width.
constexpr int kCopyVectors = 8;
constexpr std::size_t kCopyTile = kCopyVectors * kWidth;
using CopyBytes = Vector<std::uint8_t>;

// What is no whole tile. The compiler's copy takes any length and alignment.
FABRIC_INLINE void copy_bytes(void* const* destinations, int destination_count, const char* source,
                              std::size_t begin, std::size_t end) {
    for (int d = 0; d < destination_count; ++d) {
        char* to = static_cast<char*>(destinations[d]);
        __builtin_memcpy(to + begin, source + begin, end - begin);
    }
}

template <bool kStreaming>
FABRIC_INLINE void copy_tiles(void* const* destinations, int destination_count, const char* source,
                              std::size_t bytes) {
    std::size_t offset = 0;
    // So many bytes first that the tiles begin on lines of the first destination. The others
    // stream only where they happen to be aligned, too.
    if (bytes >= kCopyTile) offset = head_bytes(destinations[0], 1, bytes);
    copy_bytes(destinations, destination_count, source, 0, offset);
    for (; bytes - offset >= kCopyTile; offset += kCopyTile) {
        CopyBytes value[kCopyVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kCopyVectors; ++v) {
            value[v] = load_vector<CopyBytes>(source + offset + v * kWidth);
        }
        for (int d = 0; d < destination_count; ++d) {
            char* to = static_cast<char*>(destinations[d]) + offset;
            // A part of a line past the cache would be read back by the processor to be merged:
            // slower than a plain store.
            if (kStreaming && at_line(to)) {
#pragma GCC unroll 8
                for (int v = 0; v < kCopyVectors; ++v) Isa::stream(to + v * kWidth, value[v]);
            } else {
#pragma GCC unroll 8
                for (int v = 0; v < kCopyVectors; ++v) store_vector(to + v * kWidth, value[v]);
            }
        }
    }
    copy_bytes(destinations, destination_count, source, offset, bytes);
}

FABRIC_INLINE void copy_streaming(void* const* destinations, int destination_count,
                                  const void* source, std::size_t bytes) {
    copy_tiles<true>(destinations, destination_count, static_cast<const char*>(source), bytes);
    __builtin_ia32_sfence();  // see reduce_vectors()
}

FABRIC_INLINE void copy_cached(void* const* destinations, int destination_count, const void* source,
                               std::size_t bytes) {
    if (destination_count == 1) {
        // The C library's own copy is as fast as ours, but for its streaming above some size.
        __builtin_memcpy(destinations[0], source, bytes);
    } else {
        copy_tiles<false>(destinations, destination_count, static_cast<const char*>(source), bytes);
    }
}

}  // namespace
}  // namespace kernels
