#include <atomic>
#include <cstdint>
#include <utility>

#include "kernels/cpu/half.hpp"
#include "kernels/cpu/optimise_table.hpp"

namespace kernels {
namespace {

struct Half {
    static float widen(std::uint16_t half) { return f16_to_f32(half); }
    static std::uint16_t narrow(float value) { return f32_to_f16(value); }
};

}  // namespace
}  // namespace kernels

#include "kernels/cpu/optimise_lane.hpp"

namespace kernels {
namespace {

// Several at a time, of which the compiler makes what vectors it has.
struct Tiles {
    using Lanes = OneLane;
    static constexpr int kRegisters = 32;
};

}  // namespace
}  // namespace kernels

#include "kernels/cpu/optimise_tiles.hpp"

namespace kernels {

constexpr OptimiseTable kOptimiseScalar = make_optimise_table();

}  // namespace kernels
