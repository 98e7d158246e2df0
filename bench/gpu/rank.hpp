// One rank of a group on a GPU, without a daemon: for programs that measure or check it.

#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "libfabricshm/cuda/device_group.hpp"

namespace gpu_bench {

/// Memory that all ranks share: the words of a group, a stage for each rank, and a buffer for each.
class SharedArena {
  public:
    static constexpr int kMaxWorld = 4;
    static constexpr fabricshm::Bytes kStageBytes = 32 << 20;
    static constexpr fabricshm::Bytes kBufferBytes = 128 << 20;

    /// Before fork(), so that all processes have it. Ends the program when there is no memory.
    SharedArena();
    ~SharedArena();
    SharedArena(const SharedArena&) = delete;
    SharedArena& operator=(const SharedArena&) = delete;

    /// New words for a group of `world`, before its ranks are made.
    void format(int world);
    std::byte* base() const noexcept { return base_; }
    fabricshm::Bytes bytes() const noexcept;
    std::byte* buffer(int rank) const noexcept;
    fabricshm::Bytes stage_offset(int rank) const noexcept;
    static constexpr fabricshm::Bytes kBlockOffset = 0;
    static constexpr fabricshm::Bytes kExchangeOffset = 32 << 10;

  private:
    std::byte* base_;
};

/// 0: there is a GPU, with a driver and kernels. 77, and a line that says what is missing. Asks in
/// a child, since a process that has started CUDA can't fork ranks.
int probe();

/// Ends the program with `what` and the error when a call of the library or of CUDA failed.
void need(const fabricshm::Result<void>& result, const char* what);
void need(cudaError_t status, const char* what);

/// The arena on a device. In the process that uses it.
std::shared_ptr<fabricshm::gpu::DeviceArena> on_device(const SharedArena& arena, int ordinal = 0);

/// `ranks_here`: of the group on this device; 0: all of them.
std::unique_ptr<fabricshm::gpu::DeviceGroup> join(
    const SharedArena& arena, const std::shared_ptr<fabricshm::gpu::DeviceArena>& device, int rank,
    int world, fabricshm::Duration timeout = std::chrono::seconds(20), int ranks_here = 0);

/// All ranks export `bytes` of their device's memory to each other, as fabricshm_cuda_export()
/// does. By all ranks at the same time, once between two format(). Ends the program when not all
/// reach it.
void export_memory(const SharedArena& arena, fabricshm::gpu::DeviceGroup& group, int rank,
                   int world, const void* pointer, fabricshm::Bytes bytes);
/// The end of it, after which the memory may be freed. By all ranks.
void end_export(const SharedArena& arena, fabricshm::gpu::DeviceGroup& group, int world);

}  // namespace gpu_bench
