#include "kernels/cpu/kernel_set.hpp"

// From here on for this instruction set only, see reduce_avx2.cpp.
#include "kernels/cpu/isa_avx2.hpp"

#include "kernels/cpu/resize_body.hpp"

namespace kernels {

constexpr ResizeTable kResizeAvx2 = {rows_of, columns_of};

}  // namespace kernels
