// NVML, for our own questions.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

/// What NVML calls the device that it finds under `name`; "" where it finds none.
std::string nvml_name_of(const std::string& name);

/// Charges what NVML sees of this process on the vGPU's GPU beyond what it allocated (contexts,
/// code, stacks), as far as the quota allows, and has the rest owed. While other threads
/// allocate and free, only what can't be theirs. Nothing where a figure per context is configured,
/// or where NVML does not know the process.
void settle_overhead(Vgpu& vgpu);

/// Shares of the GPU's time, 0 to 1.
struct BusyShares {
    double all = 0.0;                          // of the vGPU's processes together
    std::map<unsigned int, double> processes;  // by NVML's number; all that have a slot
};

/// What the processes of the vGPU had of the GPU's time since `since_us` (as NVML counts, moved on
/// to the newest sample). Nothing: NVML does not say.
std::optional<BusyShares> busy_shares(Vgpu& vgpu, std::uint64_t& since_us);

}  // namespace fabricshm::cuda
