// NVML, for our own questions.

#pragma once

#include <cstdint>
#include <optional>

#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

/// Charges what NVML sees of this process on the vGPU's GPU beyond what it allocated (contexts,
/// code, stacks), as far as the quota allows. Nothing where a figure per context is configured, or
/// where NVML does not know the process.
void settle_overhead(Vgpu& vgpu);

/// The share of the GPU's time (0 to 1) that the processes of the vGPU had since `since_us` (as
/// NVML counts, moved on to the newest sample). Nothing: NVML does not say.
std::optional<double> busy_share(Vgpu& vgpu, std::uint64_t& since_us);

}  // namespace fabricshm::cuda
