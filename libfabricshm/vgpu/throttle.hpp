// Launches wait here until the vGPU's share of the GPU's time allows them, and what its processes
// had of that time is recorded in the ledger.

#pragma once

#include <algorithm>
#include <cstdint>

#include "libfabricshm/vgpu/cuda_abi.hpp"
#include "libfabricshm/vgpu/nvml.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

/// More work than any launch that ends: what a program asks for in error must not overdraw the
/// bucket for good, nor overflow it into credit.
inline constexpr std::uint64_t kMaxWork = std::uint64_t{1} << 48;

/// Units of work of one launch: its threads. What a thread costs is found out by the controller,
/// which compares work with the GPU's busy time.
inline std::uint64_t work_of(const unsigned int (&grid)[3],
                             const unsigned int (&block)[3]) noexcept {
    std::uint64_t threads = 1;
    for (int i = 0; i < 3; ++i) {
        // Each side is below 2^32, so the first product fits; the second is the one to be watched.
        const std::uint64_t side = std::uint64_t{grid[i]} * block[i];
        if (__builtin_mul_overflow(threads, side, &threads)) return kMaxWork;
    }
    return std::clamp<std::uint64_t>(threads, 1, kMaxWork);
}

/// Whether launches are held back at all. Two loads.
inline bool is_throttled(Vgpu& vgpu) {
    vgpu.follow_limits();
    return vgpu.share_percent() < 100;
}

/// Waits until `work` may start, at most two seconds, and charges it.
void throttle(Vgpu& vgpu, std::uint64_t work);

/// Takes it back: the driver refused the launch.
void unthrottle(Vgpu& vgpu, std::uint64_t work) noexcept;

/// For launches that are not held back: samples the GPU's time once per second. A clock reading and
/// a load otherwise.
void account(Vgpu& vgpu);

/// Launches with `call()` when the vGPU's share allows `work()`, which is asked only when there is
/// one; 0 costs nothing.
template <typename Work, typename Call>
Status launched_in_share(Vgpu& vgpu, Work work, Call call) {
    if (!is_throttled(vgpu)) {
        account(vgpu);
        return call();
    }
    const std::uint64_t cost = work();
    if (cost == 0) return call();
    throttle(vgpu, cost);
    const Status status = call();
    if (status != kSuccess) unthrottle(vgpu, cost);
    return status;
}

/// The same, and counts the program's code with its first launch at the latest: older runtimes,
/// seen with 10.1, load it through cuGetExportTable, past all our functions.
template <typename Work, typename Call>
Status launched(Vgpu* vgpu, Work work, Call call) {
    if (vgpu == nullptr) return call();
    const Status status = launched_in_share(*vgpu, work, call);
    if (status == kSuccess && vgpu->is_first_launch()) settle_overhead(*vgpu);
    vgpu->pay();
    return status;
}

}  // namespace fabricshm::cuda
