#include "kernels/cuda/embedded.hpp"

#include <cstring>

#ifdef FABRIC_HAVE_CUDA_KERNELS
// Laid down by embed.S, which the build makes.
extern "C" {
extern const unsigned char fabric_fatbin_reduce[], fabric_fatbin_reduce_end[];
extern const unsigned char fabric_fatbin_optimise[], fabric_fatbin_optimise_end[];
}
#endif

namespace kernels::cuda {

EmbeddedModule embedded_module(const char* name) noexcept {
#ifdef FABRIC_HAVE_CUDA_KERNELS
    const auto between = [](const unsigned char* start, const unsigned char* end) {
        return EmbeddedModule{start, static_cast<std::size_t>(end - start)};
    };
    if (std::strcmp(name, "reduce") == 0) {
        return between(fabric_fatbin_reduce, fabric_fatbin_reduce_end);
    }
    if (std::strcmp(name, "optimise") == 0) {
        return between(fabric_fatbin_optimise, fabric_fatbin_optimise_end);
    }
#else
    (void)name;
#endif
    return {nullptr, 0};
}

}  // namespace kernels::cuda
