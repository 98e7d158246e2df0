#include "kernels/cpu/kernel_set.hpp"
#include "kernels/cpu/resize_body.hpp"

namespace kernels {

constexpr ResizeTable kResizeScalar = {rows_of, columns_of};

}  // namespace kernels
