// The reduction by a grid's threads: elements and operations are those of the scalar kernel, so the
// bits are, too.

#pragma once

#include <bit>

#include "kernels/cpu/elements_scalar.hpp"
#include "kernels/cuda/copy_body.hpp"

// Functions that are compiled once and called, not copied into every kernel.
#ifdef __CUDACC__
#define FABRIC_NOT_INLINE __noinline__
#else
#define FABRIC_NOT_INLINE
#endif

namespace kernels::cuda {

/// A ReduceJob by addresses.
struct Operands {
    DType type;
    ReduceOp op;
    int source_count;
    int destination_count;
    int divisor;
    std::uint64_t count;
    const Address* sources;
    const Address* destinations;
    // Bytes that are added to each of them.
    std::uint64_t source_offset = 0;
    std::uint64_t destination_offset = 0;

    constexpr Address source(int index) const { return sources[index] + source_offset; }
    constexpr Address destination(int index) const {
        return destinations[index] + destination_offset;
    }
};

namespace detail {

template <class Stored, std::uint64_t kCount>
struct Pack {
    Stored element[kCount];
};

constexpr bool all_alike(const Operands& job) {
    for (int s = 1; s < job.source_count; ++s) {
        if (!aligned_alike(job.source(0), job.source(s))) return false;
    }
    for (int d = 0; d < job.destination_count; ++d) {
        if (!aligned_alike(job.source(0), job.destination(d))) return false;
    }
    return true;
}

// Calls act.operator()<op>() of the operation, if the type has it. Chosen for each vector of each
// source, not once for all: a branch that all threads take alike costs nothing next to memory, and
// a kernel for each pair of type and operation took nvcc minutes.
template <DType kType, class Act>
constexpr void with_op(ReduceOp op, Act act) {
    switch (op) {
#define FABRIC_CASE(op, ...)                                                                      \
    case ReduceOp::op:                                                                            \
        if constexpr (is_supported(kType, ReduceOp::op)) act.template operator()<ReduceOp::op>(); \
        break;
        FABRIC_REDUCE_OPS(FABRIC_CASE)
#undef FABRIC_CASE
    }
}

// `kCount` elements that lie in one T (a vector, or one element), at byte `at` of every operand.
template <DType kType, class T, class Grid>
constexpr void reduce_at(Grid& grid, const Operands& job, std::uint64_t at) {
    using Element = scalar::ElementOf<kType>;
    using Stored = typename Element::Stored;
    constexpr std::uint64_t kCount = sizeof(T) / sizeof(Stored);
    using Together = Pack<Stored, kCount>;
    const auto load = [&](int source) {
        return std::bit_cast<Together>(grid.template load<T>(job.source(source) + at));
    };
    typename Element::Value value[kCount];
    Together pack = load(0);
    for (std::uint64_t k = 0; k < kCount; ++k) value[k] = Element::widen(pack.element[k]);
    for (int s = 1; s < job.source_count; ++s) {
        pack = load(s);
        with_op<kType>(job.op, [&]<ReduceOp kOp>() {
            for (std::uint64_t k = 0; k < kCount; ++k) {
                value[k] = scalar::add_source<kOp>(value[k], Element::widen(pack.element[k]));
            }
        });
    }
    if constexpr (is_number(kType)) {
        if (job.op == ReduceOp::kAvg) {
            for (auto& sum : value) sum = scalar::divide(sum, job.divisor);
        }
    }
    for (std::uint64_t k = 0; k < kCount; ++k) pack.element[k] = Element::narrow(value[k]);
    const auto result = std::bit_cast<T>(pack);
    for (int d = 0; d < job.destination_count; ++d) grid.store(job.destination(d) + at, result);
}

template <DType kType, class Grid>
FABRIC_NOT_INLINE constexpr void reduce_type(Grid& grid, const Operands& job, const Cut& cut,
                                             Worker worker) {
    using Stored = typename scalar::ElementOf<kType>::Stored;
    constexpr std::uint64_t kSize = sizeof(Stored);
    static_assert(kSize == size_of(kType));
    share_span(
        cut, job.count, worker,
        [&](std::uint64_t i) { reduce_at<kType, Vector16>(grid, job, i * kSize); },
        [&](std::uint64_t i) { reduce_at<kType, Stored>(grid, job, i * kSize); });
}

}  // namespace detail

/// Bytes of an element: as size_of(), which reads a table that a GPU does not have.
constexpr std::uint64_t bytes_of(DType type) {
    switch (type) {
#define FABRIC_CASE(type, value, c, size, ...) \
    case DType::type:                          \
        return size;
        FABRIC_DTYPES(FABRIC_CASE)
#undef FABRIC_CASE
    }
    return 0;
}

/// Of an element: its size, but that of a value with an index is its value's.
constexpr std::uint64_t alignment_of(DType type) {
    const bool pair = type == DType::kF64Loc || type == DType::kF32Loc || type == DType::kI32Loc ||
                      type == DType::kI64Loc;
    return pair ? bytes_of(type) / 2 : bytes_of(type);
}

/// All workers together reduce. Destinations may be sources (same address), as in ReduceJob. A pair
/// of type and operation that is_supported() denies does nothing.
template <class Grid>
constexpr void reduce_span(Grid& grid, const Operands& job, Worker worker) {
    const std::uint64_t size = bytes_of(job.type);
    if (job.source_count == 1 && job.op != ReduceOp::kAvg) {
        for (int d = 0; d < job.destination_count; ++d) {
            copy_span(grid, job.destination(d), job.source(0), job.count * size, worker);
        }
        return;
    }
    const Cut cut = cut_span(job.source(0), job.count, size, detail::all_alike(job));
    switch (job.type) {
#define FABRIC_CASE(type, ...)                                    \
    case DType::type:                                             \
        detail::reduce_type<DType::type>(grid, job, cut, worker); \
        break;
        FABRIC_DTYPES(FABRIC_CASE)
#undef FABRIC_CASE
    }
}

template <class Grid>
constexpr void reduce_body(Grid& grid, const ReduceArgs& args) {
    reduce_span(grid,
                {args.type, args.op, args.source_count, args.destination_count, args.divisor,
                 args.count, args.sources, args.destinations},
                worker_of_grid(grid));
}

}  // namespace kernels::cuda
