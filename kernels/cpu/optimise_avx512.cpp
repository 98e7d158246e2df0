#include <atomic>
#include <cstdint>
#include <utility>

#include "kernels/cpu/optimise_table.hpp"

// What these headers define inline must not be called below: it would be compiled again for this
// instruction set, and the linker might keep that copy for all.
#include "kernels/cpu/isa_avx512.hpp"

#include "kernels/cpu/optimise_lanes_vector.hpp"

#include "kernels/cpu/optimise_lane.hpp"

namespace kernels {
namespace {

// A tile of the rule with the most states fits into the 32 registers.
struct Tiles {
    using Lanes = WideLanes;
    static constexpr int kRegisters = 1;
};

}  // namespace
}  // namespace kernels

#include "kernels/cpu/optimise_tiles.hpp"

namespace kernels {

constexpr OptimiseTable kOptimiseAvx512 = make_optimise_table();

}  // namespace kernels
