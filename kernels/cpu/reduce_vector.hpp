// The reduction, once for every register width. See vector.hpp for how this file is compiled; the
// file that includes it makes its table with make_reduce_table().

#pragma once

#include "kernels/cpu/elements_vector.hpp"
#include "kernels/cpu/operands_vector.hpp"
#include "kernels/cpu/operations_vector.hpp"
#include "kernels/cpu/vector.hpp"

namespace kernels {
namespace {

// Lifts what is defined on one register to the two of a 16-bit float, and those to the four of one
// of 8 bits.
template <class V>
inline constexpr bool kIsGroup = std::is_same_v<V, FloatPair> || std::is_same_v<V, FloatQuad>;

template <class Op, class V>
FABRIC_INLINE V before(V value) {
    if constexpr (kIsGroup<V>) {
        return {before<Op>(value.first), before<Op>(value.second)};
    } else {
        return Op::before(value);
    }
}

template <class Op, class V>
FABRIC_INLINE V combine(V a, V b) {
    if constexpr (kIsGroup<V>) {
        return {combine<Op>(a.first, b.first), combine<Op>(a.second, b.second)};
    } else {
        return Op::combine(a, b);
    }
}

template <class Op, class V>
FABRIC_INLINE V after(V value) {
    if constexpr (kIsGroup<V>) {
        return {after<Op>(value.first), after<Op>(value.second)};
    } else {
        return Op::after(value);
    }
}

template <class T, class V>
FABRIC_INLINE V divide(const Divider<T>& divider, V value) {
    if constexpr (kIsGroup<V>) {
        return {divide(divider, value.first), divide(divider, value.second)};
    } else {
        return divider.divide(value);
    }
}

// Two lines at a time of each stream when results go past the cache: the processor has few buffers
// in which lines are filled, and each destination of a tile wants its own.
constexpr std::size_t kStreamTileBytes = 2 * kLine;

// Far enough ahead to hide the latency of memory; see docs/kernels.md for what was tried.
constexpr std::size_t kPrefetchAhead = 1024;
constexpr std::size_t kPrefetchAheadOfStreams = 512;

template <int kVectors, std::size_t kAhead>
FABRIC_INLINE void prefetch_tile(const char* from) {
    for (std::size_t line = 0; line < kVectors * kWidth; line += kLine) {
        __builtin_prefetch(from + kAhead + line);
    }
}

// A short tile goes with stores past the cache, see docs/kernels.md.
template <int kVectors>
FABRIC_INLINE void prefetch_tile(const char* from) {
    constexpr bool kShort = kVectors * kWidth <= kStreamTileBytes;
    prefetch_tile<kVectors, kShort ? kPrefetchAheadOfStreams : kPrefetchAhead>(from);
}

template <class Element, class Op, int kVectors>
FABRIC_INLINE void join_source(typename Element::Value* value, const char* from, bool prefetch) {
    if (prefetch) prefetch_tile<kVectors>(from);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
        value[v] = combine<Op>(value[v], before<Op>(Element::load(from + v * kWidth)));
    }
}

// One job on its way: what every tile needs to know.
template <class Element, ReduceOp kOp, int kSources>
class Reduction {
  public:
    using Value = typename Element::Value;
    static constexpr std::size_t kTileBytes = Element::kTile * kWidth;

    explicit Reduction(const ReduceJob& job)
        : sources_(job), destinations_(job), divider_(job.divisor), streaming_(job.streaming) {}

    // Bytes to do one by one so that stores start at a line. Short results do without: the head
    // costs more than stores that straddle lines.
    FABRIC_INLINE std::size_t head(std::size_t bytes) const {
        if (!streaming_ && bytes < kAlignFrom) return 0;
        return head_bytes(destinations_.to_align(), Element::kBytes, bytes);
    }

    // Whole tiles in [begin, end), then whole registers. Returns where it stopped.
    FABRIC_INLINE std::size_t run(std::size_t begin, std::size_t end) const {
        std::size_t offset = begin;
        while (end - offset >= kTileBytes) {
            const std::size_t left = (end - offset) / kTileBytes * kTileBytes;
            offset = run_block(offset, kSources == 0 && left > kBlockBytes ? kBlockBytes : left);
        }
        for (; end - offset >= kWidth; offset += kWidth) {
            Value partial[1];
            reduce_tile<1>(0, sources_.count(), offset, partial, false);
        }
        return offset;
    }

  private:
    static constexpr std::size_t kAlignFrom = 4096;
    // More sources than this are taken in groups over a block whose partial results stay in the
    // first-level cache. Buffers often start at like addresses, so that past eight of them a line
    // of each no longer fits the eight ways of a cache set, and what was fetched ahead is lost.
    static constexpr int kGroup = 8;
    static constexpr std::size_t kBlockBytes = 8192 / sizeof(Value) * kWidth;

    FABRIC_INLINE std::size_t run_block(std::size_t begin, std::size_t bytes) const {
        if constexpr (kSources != 0) {
            constexpr int kShort = kStreamTileBytes / kWidth;
            static_assert(kTileBytes % kStreamTileBytes == 0);
            if (destinations_.any_streamed()) {
                for (std::size_t done = 0; done < bytes; done += kStreamTileBytes) {
                    Value partial[kShort];
                    reduce_tile<kShort>(0, kSources, begin + done, partial, true);
                }
                return begin + bytes;
            }
            for (std::size_t done = 0; done < bytes; done += kTileBytes) {
                Value partial[Element::kTile];
                reduce_tile<Element::kTile>(0, kSources, begin + done, partial, streaming_);
            }
        } else {
            Value partial[kBlockBytes / kWidth];
            const bool prefetch = streaming_ && sources_.count() <= kGroup;
            for (int first = 0; first < sources_.count(); first += kGroup) {
                const int left = sources_.count() - first;
                const int last = first + (left < kGroup ? left : kGroup);
                for (std::size_t done = 0; done < bytes; done += kTileBytes) {
                    reduce_tile<Element::kTile>(first, last, begin + done, partial + done / kWidth,
                                                prefetch);
                }
            }
        }
        return begin + bytes;
    }

    // Sources [first, last) joined to `partial`, or begun with source 0, and put back there, or
    // written to the destinations when no source is left.
    template <int kVectors>
    FABRIC_INLINE void reduce_tile(int first, int last, std::size_t offset, Value* partial,
                                   bool prefetch) const {
        Value value[kVectors];
        if (first == 0) {
            const char* from = sources_.at(0) + offset;
            if (prefetch) prefetch_tile<kVectors>(from);
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) {
                value[v] = before<Op>(Element::load(from + v * kWidth));
            }
            first = 1;
        } else {
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) value[v] = partial[v];
        }
        if constexpr (kSources == 0) {
            for (int s = first; s < last; ++s) {
                join_source<Element, Op, kVectors>(value, sources_.at(s) + offset, prefetch);
            }
        } else {
#pragma GCC unroll 8
            for (int s = 1; s < kSources; ++s) {
                join_source<Element, Op, kVectors>(value, sources_.at(s) + offset, prefetch);
            }
        }
        if (last == sources_.count()) {
            finish_tile<kVectors>(value, offset);
        } else {
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) partial[v] = value[v];
        }
    }

    template <int kVectors>
    FABRIC_INLINE void finish_tile(Value* value, std::size_t offset) const {
        decltype(Element::pack(value[0])) result[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
            if constexpr (kOp == ReduceOp::kAvg) value[v] = divide(divider_, value[v]);
            result[v] = Element::pack(after<Op>(value[v]));
        }
        destinations_.template store<kVectors>(offset, result);
    }

    using Op = Operation<kOp, typename Element::Lane>;
    Sources<kSources> sources_;
    Destinations destinations_;
    Divider<typename Element::Lane> divider_;
    bool streaming_;
};

template <class Element, ReduceOp kOp, int kSources>
void reduce_vectors(const ReduceJob& job) noexcept {
    const Reduction<Element, kOp, kSources> reduction(job);
    const std::size_t bytes = job.count * Element::kBytes;
    const std::size_t begin = reduction.head(bytes);
    if (begin != 0) reduce_scalar_range(job, 0, begin / Element::kBytes);
    const std::size_t end = reduction.run(begin, bytes);
    if (end != bytes) reduce_scalar_range(job, end / Element::kBytes, job.count);
    // Streaming stores are weakly ordered, even on x86: without the fence a later release store,
    // which is a plain one, could be seen before them.
    if (job.streaming) __builtin_ia32_sfence();
}

template <class Element, ReduceOp kOp>
void reduce_any(const ReduceJob& job) noexcept {
    reduce_vectors<Element, kOp, 0>(job);
}

// With the common numbers of ranks known to the compiler: for the hot operations only, because each
// is a loop of its own to compile.
template <class Element, ReduceOp kOp>
void reduce_common(const ReduceJob& job) noexcept {
    switch (job.source_count) {
        case 2:
            return reduce_vectors<Element, kOp, 2>(job);
        case 3:
            return reduce_vectors<Element, kOp, 3>(job);
        case 4:
            return reduce_vectors<Element, kOp, 4>(job);
        case 8:
            return reduce_vectors<Element, kOp, 8>(job);
        default:
            return reduce_vectors<Element, kOp, 0>(job);
    }
}

// Types without an element of their own go one by one: values with an index, of which programs
// search a few per rank.
void reduce_one_by_one(const ReduceJob& job) noexcept {
    reduce_scalar_range(job, 0, job.count);
}

// Of integers signs matter to three operations only; the others share the unsigned code.
template <DType kType, ReduceOp kOp>
using ElementFor = typename VectorElementOf<kType, kOp == ReduceOp::kAvg || kOp == ReduceOp::kMin ||
                                                       kOp == ReduceOp::kMax>::type;

template <DType kType, ReduceOp kOp>
constexpr ReduceFunction reduce_function() {
    constexpr bool kHot = kType == DType::kF32 && (kOp == ReduceOp::kSum || kOp == ReduceOp::kAvg);
    if constexpr (!is_supported(kType, kOp)) {
        return nullptr;
    } else if constexpr (std::is_void_v<ElementFor<kType, kOp>>) {
        return reduce_one_by_one;
    } else if constexpr (kHot) {
        return reduce_common<ElementFor<kType, kOp>, kOp>;
    } else {
        return reduce_any<ElementFor<kType, kOp>, kOp>;
    }
}

template <int... kPairs>
constexpr ReduceTable make_reduce_table(std::integer_sequence<int, kPairs...>) {
    constexpr int kOps = kReduceOpCount;
    ReduceTable table = {};
    ((table.function[kPairs / kOps][kPairs % kOps] =
          reduce_function<static_cast<DType>(kPairs / kOps),
                          static_cast<ReduceOp>(kPairs % kOps)>()),
     ...);
    return table;
}

constexpr ReduceTable make_reduce_table() {
    return make_reduce_table(std::make_integer_sequence<int, kDTypeCount * kReduceOpCount>());
}

}  // namespace
}  // namespace kernels
