// DeviceExports: the device memory that the ranks of a group let each other reach.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/launch.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/cuda/opened_memory.hpp"

namespace fabricshm::gpu {

/// What a rank lets its peers know of the range that it exports. It travels through shared memory,
/// so a peer's is input. `bytes` 0: it exports nothing.
struct ExportOffer {
    cuda::IpcHandle handle;  // of the allocation that the range is in
    std::uint64_t offset;    // of the range there
    std::uint64_t bytes;
    std::array<std::uint64_t, 2> device;  // on which it lies: its UUID
    std::uint64_t token;                  // by which other ranks of the same process find it
};
static_assert(sizeof(ExportOffer) == 104);

/// Which rank of which group this is, so that ranks of one process find each other's ranges.
struct ExportSeat {
    std::uint64_t group = 0;  // any number that the group's ranks have alike
    int rank = 0;
};

/// Made by all ranks at the same time: each offers, all open what the others have offered, and all
/// keep what every rank has opened. Used by one thread at a time.
class DeviceExports {
  public:
    /// Of the rank's memory at `pointer`; null and 0 for a rank that exports nothing. kInvalid: it
    /// is no memory of this device, or ends outside of its allocation. kUnsupported: it has no
    /// handle, as memory of cuMemCreate, of pools and managed memory.
    static Result<std::unique_ptr<DeviceExports>> offer(std::shared_ptr<const DeviceContext> device,
                                                        ExportSeat seat, const void* pointer,
                                                        Bytes bytes);
    /// Closes what was opened; no kernel of this rank works on it any more.
    ~DeviceExports();
    DeviceExports(const DeviceExports&) = delete;
    DeviceExports& operator=(const DeviceExports&) = delete;

    const ExportOffer& offered() const noexcept { return offered_; }

    /// Opens the others' offers, by rank. A bit for each rank whose memory this one reaches, its
    /// own among them: not where the device can't, or the driver not within one process. kCorrupt:
    /// a rank offers more than its allocation has. kNoMemory, kUnsupported: see OpenedMemory.
    Result<std::uint32_t> open(std::span<const ExportOffer> all);

    /// The ranks whose memory is used, of those that were opened; the others' is closed.
    void keep(std::uint32_t ranks) noexcept;
    std::uint32_t kept() const noexcept { return kept_; }

    /// Where this process reaches each rank's range; 0 bytes: not at all.
    const std::array<kernels::cuda::Window, kernels::cuda::kMaxRanks>& windows() const noexcept {
        return windows_;
    }

    /// Where [pointer, pointer + bytes) begins in the range that this rank exports. Nothing: it is
    /// not all inside, or the memory is not any more the one that was exported.
    std::optional<Bytes> offset_of(Pointer pointer, Bytes bytes) const noexcept;

  private:
    DeviceExports(std::shared_ptr<const DeviceContext> device, ExportSeat seat)
        : device_(std::move(device)), seat_(seat) {}
    Result<void> describe(const void* pointer, Bytes bytes);
    void publish();
    bool reaches_device(const ExportOffer& offer) const noexcept;
    Result<bool> open_one(const ExportOffer& offer, int rank);

    const std::shared_ptr<const DeviceContext> device_;
    const ExportSeat seat_;
    ExportOffer offered_{};
    Pointer own_ = 0;           // the range that this rank exports
    std::uint64_t own_id_ = 0;  // the driver's, of the allocation that it is in
    std::uint32_t kept_ = 0;
    std::array<kernels::cuda::Window, kernels::cuda::kMaxRanks> windows_{};
    std::array<std::unique_ptr<OpenedMemory>, kernels::cuda::kMaxRanks> opened_;
};

}  // namespace fabricshm::gpu
