// Launches wait here until the vGPU's share of the GPU's time allows them.

#pragma once

#include <cstdint>

#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

/// Units of work of one launch: its threads. What a thread costs is found out by the controller,
/// which compares work with the GPU's busy time.
inline std::uint64_t work_of(const unsigned int (&grid)[3],
                             const unsigned int (&block)[3]) noexcept {
    std::uint64_t threads = 1;
    for (int i = 0; i < 3; ++i) threads *= std::uint64_t{grid[i]} * block[i];
    return threads == 0 ? 1 : threads;
}

/// Whether launches are held back at all. Two loads.
inline bool is_throttled(Vgpu& vgpu) {
    vgpu.follow_limits();
    return vgpu.share_percent() < 100;
}

/// Waits until `work` may start, at most two seconds, and books it.
void throttle(Vgpu& vgpu, std::uint64_t work);

}  // namespace fabricshm::cuda
