#include <cstring>

#include "kernels/cpu/kernel_set.hpp"

namespace kernels {

namespace {

// Small enough that the source stays in the first-level cache while every destination takes it.
constexpr std::size_t kBlockBytes = 4096;

}  // namespace

void copy_scalar(void* const* destinations, int destination_count, const void* source,
                 std::size_t bytes) noexcept {
    const std::size_t block = destination_count == 1 ? bytes : kBlockBytes;
    for (std::size_t offset = 0; offset < bytes; offset += block) {
        const std::size_t length = bytes - offset < block ? bytes - offset : block;
        for (int d = 0; d < destination_count; ++d) {
            std::memcpy(static_cast<char*>(destinations[d]) + offset,
                        static_cast<const char*>(source) + offset, length);
        }
    }
}

}  // namespace kernels
