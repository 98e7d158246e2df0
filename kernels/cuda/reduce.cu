// Copies, reductions and collectives: one module, so that the reductions are compiled once.
// __grid_constant__: arguments are read where they are, not copied to each thread's stack.

#include "kernels/cuda/collective_body.hpp"
#include "kernels/cuda/copy_body.hpp"
#include "kernels/cuda/device_grid.cuh"
#include "kernels/cuda/reduce_body.hpp"

namespace kernels::cuda {

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    fabric_copy(const __grid_constant__ CopyArgs args) {
    __shared__ std::uint64_t shared[kSharedWords];
    DeviceGrid grid(shared);
    copy_body(grid, args);
}

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    fabric_reduce(const __grid_constant__ ReduceArgs args) {
    DeviceGrid grid(nullptr);
    reduce_body(grid, args);
}

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    fabric_collective(const __grid_constant__ CollectiveArgs args) {
    __shared__ std::uint64_t shared[kSharedWords];
    DeviceGrid grid(shared);
    collective_body(grid, args, SpanWork());
}

}  // namespace kernels::cuda
