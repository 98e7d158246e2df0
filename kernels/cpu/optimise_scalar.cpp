#include <atomic>
#include <cstdint>
#include <utility>

#include "kernels/cpu/half.hpp"
#include "kernels/cpu/optimise_table.hpp"

namespace kernels {
namespace {

struct Half {
    static void widen(float* to, const std::uint16_t* from, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) to[i] = f16_to_f32(from[i]);
    }
    static void narrow(std::uint16_t* to, const float* from, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) to[i] = f32_to_f16(from[i]);
    }
};

}  // namespace
}  // namespace kernels

#include "kernels/cpu/optimise_tiles.hpp"

namespace kernels {

constexpr OptimiseTable kOptimiseScalar = make_optimise_table();

}  // namespace kernels
