// The plainest loops over memory this machine can run: what the limits are made of. They share no
// code with kernels/, so that a weakness there shows as a distance to the limit.

#pragma once

#include <cstddef>

namespace bench {

inline constexpr int kMaxRanks = 16;  // sources and destinations of one move
inline constexpr int kFixed = 4;      // up to so many have loops of their own

/// How what is moved gets into memory.
enum class Store {
    kCached,     // through the cache
    kStreaming,  // past it
    kString  // rep movsb, which the processor may do as it likes; sums are made in the cache first
};

/// Sources are summed element by element and stored to every destination; one source copies.
struct Move {
    const float* const* sources = nullptr;
    int source_count = 0;
    float* const* destinations = nullptr;
    int destination_count = 0;
    std::size_t count = 0;  // elements
    Store store = Store::kCached;
    bool wide = false;  // eight registers at a time instead of four
    /// Bytes that the sources are asked for ahead; 0 leaves it to the processor.
    std::size_t prefetch = 0;
};

/// The loops of one instruction set. Any alignment; pure and thread-safe.
struct MemoryMoves {
    /// A table of plain functions: chosen once and called through pointers, which costs nothing
    /// against a buffer of kilobytes.
    const char* isa;
    void (*move)(const Move&);
    float (*read)(const float* from, std::size_t count);
    void (*write)(float* to, std::size_t count, bool streaming);
    void (*accumulate)(float* to, const float* from, std::size_t count);          // to += from
    void (*triad)(float* to, const float* a, const float* b, std::size_t count);  // to = a + 3 b
};

/// The widest this processor has.
const MemoryMoves& memory_moves();

namespace detail {
extern const MemoryMoves kMovesBase;
extern const MemoryMoves kMovesAvx2;
extern const MemoryMoves kMovesAvx512;
}  // namespace detail

}  // namespace bench
