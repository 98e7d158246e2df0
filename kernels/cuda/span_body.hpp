// How a grid's threads share a span of elements: 16 bytes at a time where all operands are aligned
// alike, element by element at both ends and everywhere else.
//
// A kernel's body is a template over its *grid*, what a thread can do and where it is. DeviceGrid
// (device_grid.cuh) is that of a GPU, CpuGrid (tests/support/cpu_grid.hpp) that of the tests:
//
//   unsigned thread(), threads()       in the block, and of it
//   unsigned block(), blocks()         (block() only of bodies that wait for nothing)
//   void sync_block()                  all threads of the block come here; orders their accesses
//   std::uint64_t& shared(int i)       one of kSharedWords words of the block
//   std::uint64_t load_acquire(Address) / void store_release(Address, value)
//   std::uint32_t load_acquire32(Address) / void store_release32(Address, value)
//   std::uint32_t fetch_add32(Address, value)     acquire and release; device memory only
//                                      all of them for the whole system, not only for the device
//   void fence()                       what this thread stored before comes before what it loads
//                                      after, in the one order of all fences of the system
//   T load<T>(Address) / void store<T>(Address, const T&)     plain, aligned to T
//   std::uint64_t now_ns()             a clock that only rises
//   void pause(unsigned turn)          between polls

#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.hpp"

namespace kernels::cuda {

inline constexpr int kSharedWords = 2;

/// What one memory access moves at most.
struct alignas(16) Vector16 {
    std::uint64_t half[2];
};
inline constexpr std::uint64_t kVectorBytes = sizeof(Vector16);

/// One of the threads that share a span. `index` is below `count`.
struct Worker {
    std::uint64_t index;
    std::uint64_t count;
};

template <class Grid>
constexpr Worker worker_of_grid(Grid& grid) noexcept {
    return {std::uint64_t{grid.block()} * grid.threads() + grid.thread(),
            std::uint64_t{grid.blocks()} * grid.threads()};
}

/// Elements [0, head) and [head + vectors * per_vector, count) go one by one.
struct Cut {
    std::uint64_t head;
    std::uint64_t vectors;
    std::uint64_t per_vector;
};

/// Of `count` elements of `size` bytes (a power of two up to 16) from `address` on, in vectors of
/// `per_vector` elements that shall start at multiples of 16 bytes. `alike`: every other operand
/// is aligned as this one is.
constexpr Cut cut_span(Address address, std::uint64_t count, std::uint64_t size, bool alike) {
    const std::uint64_t per_vector = kVectorBytes / size;
    if (!alike || address % size != 0) return {count, 0, per_vector};
    std::uint64_t head = (kVectorBytes - address % kVectorBytes) % kVectorBytes / size;
    if (head > count) head = count;
    return {head, (count - head) / per_vector, per_vector};
}

constexpr bool aligned_alike(Address one, Address other, std::uint64_t bytes = kVectorBytes) {
    return ((one ^ other) & (bytes - 1)) == 0;
}

/// Calls vector(i) for the first element i of each whole vector and single(i) for all others; each
/// worker for its own.
template <class Vector, class Single>
constexpr void share_span(const Cut& cut, std::uint64_t count, Worker worker, Vector vector,
                          Single single) {
    for (std::uint64_t i = worker.index; i < cut.head; i += worker.count) single(i);
    for (std::uint64_t v = worker.index; v < cut.vectors; v += worker.count) {
        vector(cut.head + v * cut.per_vector);
    }
    for (std::uint64_t i = cut.head + cut.vectors * cut.per_vector + worker.index; i < count;
         i += worker.count) {
        single(i);
    }
}

}  // namespace kernels::cuda
