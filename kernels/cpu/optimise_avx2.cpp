#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cpu/float8.hpp"
#include "kernels/cpu/half.hpp"
#include "kernels/cpu/kernel_set.hpp"
#include "kernels/cpu/number_of.hpp"

// From here on for this instruction set only, see reduce_avx2.cpp.
#include "kernels/cpu/isa_avx2.hpp"

#include "kernels/cpu/optimise_vector.hpp"

namespace kernels {

constexpr OptimiseTable kOptimiseAvx2 = make_optimise_table();

}  // namespace kernels
