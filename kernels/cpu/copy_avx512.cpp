#include <cstdint>

#include "kernels/cpu/kernel_set.hpp"

// From here on for this instruction set only, see reduce_avx512.cpp.
#include "kernels/cpu/isa_avx512.hpp"

#include "kernels/cpu/copy_vector.hpp"

namespace kernels {

void copy_cached_avx512(void* const* destinations, int destination_count, const void* source,
                        std::size_t bytes) noexcept {
    copy_cached(destinations, destination_count, source, bytes);
}

void copy_streaming_avx512(void* const* destinations, int destination_count, const void* source,
                           std::size_t bytes) noexcept {
    copy_streaming(destinations, destination_count, source, bytes);
}

}  // namespace kernels
