// The vector kernels at 64 bytes a register: what they do at that width is tested on processors
// without AVX-512 too.

#include <type_traits>
#include <utility>

#include "kernels/cpu/float8.hpp"
#include "kernels/cpu/number_of.hpp"
#include "kernels/cpu/reduce_scalar.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/kernels/reduce_cases.hpp"

// After all others, see there.
#include "kernels/cpu/isa_avx2_pair.hpp"

#include "kernels/cpu/copy_vector.hpp"
#include "kernels/cpu/reduce_vector.hpp"

namespace {

constexpr kernels::ReduceTable kWideTable = kernels::make_reduce_table();

void copy_wide_cached(void* const* destinations, int count, const void* source,
                      std::size_t bytes) noexcept {
    kernels::copy_cached(destinations, count, source, bytes);
}

void copy_wide_streaming(void* const* destinations, int count, const void* source,
                         std::size_t bytes) noexcept {
    kernels::copy_streaming(destinations, count, source, bytes);
}

}  // namespace

namespace kernels_test {

const kernels::KernelSet* tested_set() {
    static const kernels::KernelSet kWide = {
        "wide", nullptr, &kWideTable, copy_wide_streaming, copy_wide_cached, nullptr};
    if (available_set("avx2") != nullptr) return &kWide;
    test_support::skip("this processor has no AVX2");
    return nullptr;
}

}  // namespace kernels_test
