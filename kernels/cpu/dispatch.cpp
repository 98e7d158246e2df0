// Chooses the instruction set once and sends every call there.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/copy.hpp"
#include "kernels/cpu/kernel_set.hpp"

namespace kernels {

namespace {

// The one that needs nothing of the processor.
bool always() noexcept {
    return true;
}

// As in CMakeLists.txt: clang compiles none of them.
#if defined(__x86_64__) && !defined(__clang__)
#define FABRIC_HAS_VECTOR_SETS
// libgcc asks the operating system too (XGETBV), so a kernel without AVX state counts as without.
bool has_avx2() noexcept {
    // The vector kernels widen and narrow 16-bit floats by F16C, which is a bit of its own.
    return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
}

bool has_avx512() noexcept {
    return has_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
           __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
           __builtin_cpu_supports("avx512vl") != 0;
}
#endif

// The order is the choice: the last one that is available wins.
constexpr KernelSet kSets[] = {
    {"scalar", always, &kReduceScalar, copy_scalar, copy_scalar, &kOptimiseScalar, &kResizeScalar},
#ifdef FABRIC_HAS_VECTOR_SETS
    {"avx2", has_avx2, &kReduceAvx2, copy_streaming_avx2, copy_cached_avx2, &kOptimiseAvx2,
     &kResizeAvx2},
    {"avx512", has_avx512, &kReduceAvx512, copy_streaming_avx512, copy_cached_avx512,
     &kOptimiseAvx512, &kResizeAvx2},
#endif
};
constexpr int kSetCount = sizeof kSets / sizeof kSets[0];

const KernelSet& chosen_at_start() noexcept {
    // For tests and for measuring one set against another; a wrong value is said once and does no
    // harm.
    const char* wanted = std::getenv("FABRIC_ISA");
    bool honoured = true;
    const KernelSet& set = choose_kernel_set(wanted, &honoured);
    if (!honoured) {
        std::fprintf(stderr, "fabric: FABRIC_ISA=%s is not available here; using %s\n", wanted,
                     set.name);
    }
    return set;
}

const KernelSet& active_set() noexcept {
    // Chosen at the first call, by whichever thread makes it, and then for good.
    static const KernelSet& set = chosen_at_start();
    return set;
}

}  // namespace

// For tests and benchmarks, which go through all of them.
const KernelSet* kernel_set(int index) noexcept {
    return index >= 0 && index < kSetCount ? &kSets[index] : nullptr;
}

const KernelSet& choose_kernel_set(const char* wanted, bool* honoured) noexcept {
    const bool any = wanted == nullptr || *wanted == '\0';
    const KernelSet* best = &kSets[0];
    const KernelSet* named = nullptr;
    // Plainest first, so the last available one is the best.
    for (const KernelSet& set : kSets) {
        if (!set.available()) continue;
        best = &set;
        if (!any && std::strcmp(wanted, set.name) == 0) named = &set;
    }
    if (honoured != nullptr) *honoured = any || named != nullptr;
    return named != nullptr ? *named : *best;
}

void reduce_with(const KernelSet& set, const ReduceJob& job) noexcept {
    const ReduceFunction function =
        set.reduce->function[static_cast<int>(job.type)][static_cast<int>(job.op)];
    if (function == nullptr) std::abort();  // bits of floats: a bug of the caller, see the header
    if (job.count == 0) return;
    // One source and nothing to divide: the sum, the largest and the product of one are itself.
    if (job.source_count == 1 && job.op != ReduceOp::kAvg) {
        const CopyFunction copy = job.streaming ? set.copy_streaming : set.copy_cached;
        copy(job.destinations, job.destination_count, job.sources[0],
             job.count * size_of(job.type));
        return;
    }
    function(job);
}

void reduce(const ReduceJob& job) noexcept {
    reduce_with(active_set(), job);
}

void optimise(const OptimiseJob& job) noexcept {
    optimise_with(active_set(), job);
}

Merged merge(const MergeJob& job) noexcept {
    return merge_with(active_set(), job);
}

void resize_rows(const ResizeJob& job, const ResizeAxis& axis) noexcept {
    active_set().resize->rows(job, axis);
}

void resize_columns(const ResizeJob& job, const ResizeAxis& axis, std::int32_t skipped,
                    std::int32_t* sums) noexcept {
    active_set().resize->columns(job, axis, skipped, sums);
}

const char* isa_name() noexcept {
    return active_set().name;
}

void copy(void* destination, const void* source, std::size_t bytes, bool streaming) noexcept {
    copy_to_all(&destination, 1, source, bytes, streaming);
}

void copy_to_all(void* const* destinations, int destination_count, const void* source,
                 std::size_t bytes, bool streaming) noexcept {
    if (bytes == 0) return;
    const KernelSet& set = active_set();
    (streaming ? set.copy_streaming : set.copy_cached)(destinations, destination_count, source,
                                                       bytes);
}

}  // namespace kernels
