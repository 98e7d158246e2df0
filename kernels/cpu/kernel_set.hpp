// What one instruction set offers, and which sets this processor can run. Internal to kernels/ and
// its tests; all other code calls kernels::reduce() and kernels::copy().

#pragma once

#include <cstddef>

#include "kernels/cpu/optimise_table.hpp"
#include "kernels/reduce.hpp"
#include "kernels/resize.hpp"

namespace kernels {

/// None of them checks anything: jobs are valid by the time they come here, see reduce_with().
using ReduceFunction = void (*)(const ReduceJob& job) noexcept;
using CopyFunction = void (*)(void* const* destinations, int destination_count, const void* source,
                              std::size_t bytes) noexcept;

/// Pairs that have no meaning (bit operations on floats) hold nullptr.
struct ReduceTable {
    ReduceFunction function[kDTypeCount][kReduceOpCount];
};

/// Whether it has a function for every pair that has a meaning, and for no other: each table is
/// held to it when it is compiled.
constexpr bool is_complete(const ReduceTable& table) noexcept {
    for (int type = 0; type < kDTypeCount; ++type) {
        for (int op = 0; op < kReduceOpCount; ++op) {
            const bool has = table.function[type][op] != nullptr;
            if (has != is_supported(static_cast<DType>(type), static_cast<ReduceOp>(op))) {
                return false;
            }
        }
    }
    return true;
}

/// Both directions of a resize; their job has rows and outputs.
struct ResizeTable {
    void (*rows)(const ResizeJob& job, const ResizeAxis& axis) noexcept;
    void (*columns)(const ResizeJob& job, const ResizeAxis& axis, std::int32_t skipped,
                    std::int32_t* sums) noexcept;
};

struct KernelSet {
    /// As FABRIC_ISA and the benchmarks call it.
    const char* name;
    bool (*available)() noexcept;  // asks processor and operating system
    const ReduceTable* reduce;     // source_count >= 1, count >= 1
    CopyFunction copy_streaming;   // ends with a store fence
    CopyFunction copy_cached;
    const OptimiseTable* optimise;
    const ResizeTable* resize = nullptr;
};

/// The sets this build knows, the plainest first; not all of them need be available.
/// nullptr past the end.
const KernelSet* kernel_set(int index) noexcept;

/// The best available set, or the one called `wanted` when that is available. `*honoured` (may be
/// null) says whether the request was met; a null or empty one always is.
const KernelSet& choose_kernel_set(const char* wanted, bool* honoured) noexcept;

/// Run `job` on one set, as kernels::reduce(), optimise() and merge() do on the chosen one.
void reduce_with(const KernelSet& set, const ReduceJob& job) noexcept;
void optimise_with(const KernelSet& set, const OptimiseJob& job) noexcept;
Merged merge_with(const KernelSet& set, const MergeJob& job) noexcept;

extern const ReduceTable kReduceScalar;
extern const ReduceTable kReduceAvx2;
extern const ReduceTable kReduceAvx512;

extern const ResizeTable kResizeScalar;
extern const ResizeTable kResizeAvx2;

void copy_scalar(void* const* destinations, int destination_count, const void* source,
                 std::size_t bytes) noexcept;
void copy_cached_avx2(void* const* destinations, int destination_count, const void* source,
                      std::size_t bytes) noexcept;
void copy_streaming_avx2(void* const* destinations, int destination_count, const void* source,
                         std::size_t bytes) noexcept;
void copy_cached_avx512(void* const* destinations, int destination_count, const void* source,
                        std::size_t bytes) noexcept;
void copy_streaming_avx512(void* const* destinations, int destination_count, const void* source,
                           std::size_t bytes) noexcept;

}  // namespace kernels
