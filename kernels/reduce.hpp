// Reduction of many inputs in one pass: every input byte is read once and every output written
// once.

#pragma once

#include <cstddef>

#include "kernels/dtype.hpp"

namespace kernels {

/// What to reduce. Sources are combined element by element in the order given:
/// ((s0 op s1) op s2) ..., and every instruction set gives the same bits:
/// - f16, bf16 and the floats of 8 bits accumulate (and kAvg divides) in f32 and round once, to
///   nearest even, at the end. What rounds beyond the largest number becomes infinity, in f8_e4m3,
///   which has none, NaN.
/// - A float result that is not a number is always the same quiet, positive NaN without payload;
///   min and max are NaN when any source is, and hold -0 to be less than +0 (IEEE 754-2019).
/// - Integers wrap, also before kAvg divides.
/// - kMinLoc and kMaxLoc give the pair whose value kMin or kMax would give, of equal values that
///   with the lowest index; padding is zeros.
/// - A single source is copied bit by bit (but for kAvg, which divides).
/// The same bits are promised under the usual MXCSR, which is neither read nor changed: with
/// denormals flushed, min and max of denormals depend on the instruction set.
struct ReduceJob {
    DType type = DType::kF32;
    ReduceOp op = ReduceOp::kSum;
    const void* const* sources = nullptr;  // source_count pointers, aligned to the element only
    int source_count = 0;                  // 1 or more; 1 copies (kAvg divides by `divisor`)
    void* const* destinations = nullptr;   // each receives the whole result
    int destination_count = 0;             // 1 or more
    std::size_t count = 0;                 // elements
    int divisor = 1;                       // for kAvg: what to divide by, 1 or more (world size)
    // The working set exceeds the cache: fetch ahead, and store past the cache to destinations that
    // are not also sources; ends with a store fence.
    bool streaming = false;
    // Of a streaming job: so many destinations, the last ones, are stored into the cache even so,
    // because they are read again soon.
    int cached_destinations = 0;
};

/// Runs the job. A destination may be one of the sources (same address) or be disjoint from all;
/// a partial overlap is undefined. Pure, thread-safe, no allocation. A pair that is_supported()
/// denies is a bug of the caller and aborts. The instruction set is chosen at the first call from
/// the processor and FABRIC_ISA (scalar, avx2, avx512); a request that cannot be met falls back to
/// the best one there is and is named once on stderr.
void reduce(const ReduceJob& job) noexcept;

/// The instruction set in use: "scalar", "avx2" or "avx512".
const char* isa_name() noexcept;

}  // namespace kernels
