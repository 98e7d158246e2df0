// Prefix reduction: destination r becomes the reduction of the sources up to r.

#pragma once

#include <cstddef>

#include "kernels/dtype.hpp"

namespace kernels {

/// What to scan. Destination r has the bits that reduce() gives of sources 0 .. r, or 0 .. r-1 when
/// `exclusive`; of an exclusive scan destination 0 is left alone.
struct ScanJob {
    DType type = DType::kF32;
    ReduceOp op = ReduceOp::kSum;  // not kAvg
    const void* const* sources = nullptr;
    void* const* destinations = nullptr;  // as many as sources
    int source_count = 0;                 // 1 or more
    std::size_t count = 0;                // elements
    bool exclusive = false;
    bool streaming = false;  // as ReduceJob::streaming
};

/// Runs the job in one pass over the sources: each byte of them is read once from memory, and each
/// byte of the destinations written once. Destination r may be source r; any other overlap is
/// undefined. Pure, thread-safe, no allocation. A pair that is_supported() denies, and kAvg, is a
/// bug of the caller and aborts.
void scan(const ScanJob& job) noexcept;

}  // namespace kernels
