#include "kernels/cpu/reduce_scalar.hpp"

#include <cstring>
#include <utility>

#include "kernels/cpu/elements_scalar.hpp"
#include "kernels/cpu/kernel_set.hpp"

namespace kernels {

namespace {

// memcpy: sources need only be aligned to the element, and their effective type is the caller's
// business.
template <class Element>
typename Element::Value load(const void* base, std::size_t index) noexcept {
    typename Element::Stored stored;
    std::memcpy(&stored, static_cast<const char*>(base) + index * sizeof stored, sizeof stored);
    return Element::widen(stored);
}

// In the order of the sources, which is that of the ranks. The vector kernels do the same.
template <class Element, ReduceOp kOp>
void reduce_elements(const ReduceJob& job, std::size_t begin, std::size_t end) noexcept {
    for (std::size_t i = begin; i < end; ++i) {
        auto value = load<Element>(job.sources[0], i);
        for (int s = 1; s < job.source_count; ++s) {
            value = scalar::add_source<kOp>(value, load<Element>(job.sources[s], i));
        }
        if constexpr (kOp == ReduceOp::kAvg) value = scalar::divide(value, job.divisor);
        const typename Element::Stored result = Element::narrow(value);
        for (int d = 0; d < job.destination_count; ++d) {
            std::memcpy(static_cast<char*>(job.destinations[d]) + i * sizeof result, &result,
                        sizeof result);
        }
    }
}

using RangeFunction = void (*)(const ReduceJob&, std::size_t, std::size_t) noexcept;

template <DType kType, ReduceOp kOp>
constexpr RangeFunction range_function() {
    if constexpr (is_supported(kType, kOp)) {
        static_assert(sizeof(typename scalar::ElementOf<kType>::Stored) == size_of(kType));
        return reduce_elements<scalar::ElementOf<kType>, kOp>;
    } else {
        return nullptr;
    }
}

struct RangeTable {
    RangeFunction function[kDTypeCount][kReduceOpCount] = {};
};

template <int... kPairs>
constexpr RangeTable make_range_table(std::integer_sequence<int, kPairs...>) {
    constexpr int kOps = kReduceOpCount;
    RangeTable table;
    ((table.function[kPairs / kOps][kPairs % kOps] =
          range_function<static_cast<DType>(kPairs / kOps),
                         static_cast<ReduceOp>(kPairs % kOps)>()),
     ...);
    return table;
}

constexpr RangeTable kRanges =
    make_range_table(std::make_integer_sequence<int, kDTypeCount * kReduceOpCount>());

void reduce_all(const ReduceJob& job) noexcept {
    reduce_scalar_range(job, 0, job.count);
}

constexpr ReduceTable make_table() {
    ReduceTable table = {};
    for (int type = 0; type < kDTypeCount; ++type) {
        for (int op = 0; op < kReduceOpCount; ++op) {
            if (is_supported(static_cast<DType>(type), static_cast<ReduceOp>(op))) {
                table.function[type][op] = reduce_all;
            }
        }
    }
    return table;
}

}  // namespace

constexpr ReduceTable kReduceScalar = make_table();
static_assert(is_complete(kReduceScalar));

void reduce_scalar_range(const ReduceJob& job, std::size_t begin, std::size_t end) noexcept {
    kRanges.function[static_cast<int>(job.type)][static_cast<int>(job.op)](job, begin, end);
}

}  // namespace kernels
