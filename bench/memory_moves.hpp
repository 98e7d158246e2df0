// The plainest loops over memory this machine can run: what the limits are made of. They share no
// code with kernels/, so that a weakness there shows as a distance to the limit.

#pragma once

#include <cstddef>

namespace bench {

/// Sources are summed element by element and stored to every destination; one source copies.
struct Move {
    const float* const* sources = nullptr;
    int source_count = 0;
    float* const* destinations = nullptr;
    int destination_count = 0;
    std::size_t count = 0;   // elements
    bool streaming = false;  // stores go past the cache
};

/// The loops of one instruction set. Any alignment; pure and thread-safe.
struct MemoryMoves {
    /// A table of plain functions: chosen once and called through pointers, which costs nothing
    /// beside a buffer of kilobytes.
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
