#include "tests/support/skip.hpp"
#include "tests/unit/kernels/reduce_cases.hpp"

namespace kernels_test {

const kernels::KernelSet* tested_set() {
    const kernels::KernelSet* set = available_set("avx512");
    if (set == nullptr) test_support::skip("this processor has no AVX-512");
    return set;
}

}  // namespace kernels_test
