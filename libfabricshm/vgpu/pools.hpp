// Stream-ordered memory: what counts is what a pool has taken from the device, not what of it is
// handed out.

#pragma once

#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

/// Gives back what the pools of this process keep unused on `vgpu`. True: something was freed.
bool trim_pools(Vgpu& vgpu);

/// Pools that ended with their context.
void end_pools_of(Vgpu& vgpu);

}  // namespace fabricshm::cuda
