// Optimiser steps at 64 bytes a register, as reduce_wide_test.cpp has the reductions.

#include <type_traits>
#include <utility>

#include "kernels/cpu/float8.hpp"
#include "kernels/cpu/half.hpp"
#include "kernels/cpu/number_of.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/kernels/optimise_compare.hpp"

// After all others, see there.
#include "kernels/cpu/isa_avx2_pair.hpp"

#include "kernels/cpu/optimise_vector.hpp"

namespace {

constexpr kernels::OptimiseTable kWideTable = kernels::make_optimise_table();

const kernels::KernelSet* wide_set() {
    static const kernels::KernelSet& scalar = *kernels::kernel_set(0);
    static const kernels::KernelSet kWide = {
        "wide", nullptr, scalar.reduce, scalar.copy_streaming, scalar.copy_cached, &kWideTable};
    const bool has_avx2 = kernels_test::available_sets().size() > 1;
    if (has_avx2) return &kWide;
    test_support::skip("this processor has no AVX2");
    return nullptr;
}

}  // namespace

TEST_SUITE("kernels.optimise_wide") {
    TEST_CASE("registers of 64 bytes give the bits of the scalar reference") {
        const kernels::KernelSet* set = wide_set();
        if (set == nullptr) return;
        kernels_test::check_all_shapes(*set);
        kernels_test::check_same_merge(*set);
    }
}
