#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cpu/float8.hpp"
#include "kernels/cpu/half.hpp"
#include "kernels/cpu/kernel_set.hpp"
#include "kernels/cpu/number_of.hpp"
#include "kernels/cpu/reduce_scalar.hpp"

// What these headers define inline must not be called below: it would be compiled again for this
// instruction set, and the linker might keep that copy for all.
#include "kernels/cpu/isa_avx512.hpp"

#include "kernels/cpu/reduce_vector.hpp"

namespace kernels {

constexpr ReduceTable kReduceAvx512 = make_reduce_table();
static_assert(is_complete(kReduceAvx512));

}  // namespace kernels
