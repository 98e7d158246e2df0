// The reduction in plain C++: the definition of right for every other version.

#pragma once

#include <cstddef>

#include "kernels/reduce.hpp"

namespace kernels {

/// Reduces elements [begin, end) only. The vector versions use it for what does not fill a vector.
void reduce_scalar_range(const ReduceJob& job, std::size_t begin, std::size_t end) noexcept;

}  // namespace kernels
