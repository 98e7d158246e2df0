// Optimiser steps, by themselves and fused with the reduction of a group's gradients.

#include "kernels/cuda/device_grid.cuh"
#include "kernels/cuda/step_body.hpp"

namespace kernels::cuda {

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    fabric_step(const __grid_constant__ StepArgs args) {
    __shared__ std::uint64_t shared[kSharedWords];
    DeviceGrid grid(shared);
    step_body(grid, args);
}

}  // namespace kernels::cuda
