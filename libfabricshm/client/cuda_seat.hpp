// CudaSeat: the place of one rank of a device group: what it has on its GPU and in the arena, or of
// a rank on a CPU in the arena alone.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/client/arena.hpp"
#include "libfabricshm/client/tensor.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/cuda/device_group.hpp"

namespace fabricshm {

/// Puts the arena into the address space of a device: see fabricshm_cuda_attach().
Result<void> attach_to_device(Arena& arena, int device, const gpu::KernelImages& images);
/// kNotFound, kBusy.
Result<void> detach_from_device(Arena& arena);
/// The arena there, or kNotFound.
Result<std::shared_ptr<gpu::DeviceArena>> arena_on_device(Arena& arena);

/// Whether a kernel that does not end may write into memory of this session, so that neither it nor
/// its arenas may be closed before the process ends.
bool has_stuck_kernel(const Session& session);

struct CudaSeatOptions {
    Bytes stage_bytes = 64 * kMiB;
    Duration timeout{};
    bool is_on_cpu = false;  // this rank needs no device
};

/// Made and given up by all ranks of the group, which outlives it.
struct CudaSeat {
    /// See fabricshm_cuda_join() and fabricshm_cuda_join_cpu(). After a failure no rank has one.
    static Result<std::shared_ptr<CudaSeat>> take(const std::shared_ptr<Arena>& arena, Group& group,
                                                  const CudaSeatOptions& options,
                                                  TimePoint deadline);
    /// The end for all ranks: the words of the group go, too. Waits for the streams as finish(),
    /// and then as long again for the other ranks.
    static Result<void> leave(std::shared_ptr<CudaSeat> seat, Group& group, Duration timeout);
    /// The end of this rank's operations on streams: see gpu::DeviceGroup::finish().
    Result<void> finish(Duration for_streams);

    /// See fabricshm_cuda_export(): the ranks whose memory all others reach from here on, a bit for
    /// each. After a failure that is the same on all ranks, what was exported before still is;
    /// where the ranks may have heard different things, the group on the device has ended.
    Result<std::uint32_t> export_memory(Group& of, const void* pointer, Bytes bytes,
                                        TimePoint deadline);
    /// See fabricshm_cuda_unexport().
    Result<void> unexport(Group& of, TimePoint deadline);

    explicit CudaSeat(std::shared_ptr<Arena> in) : arena(std::move(in)) {}
    /// Waits as finish(). What a kernel that does not end may touch stays mapped, and this
    /// session's at the daemon, until the process ends.
    ~CudaSeat();
    CudaSeat(const CudaSeat&) = delete;
    CudaSeat& operator=(const CudaSeat&) = delete;

    const std::shared_ptr<Arena> arena;
    // Rank 0's: the words of the group. They belong to the arena, since a rank that dies must not
    // take them from under the others' kernels: without leave() they stay as long as the arena.
    TensorView words;
    Duration timeout{};  // of the operations; 0: not all ranks have taken their seats
    std::byte* stage = nullptr;
    std::unique_ptr<gpu::DeviceGroup> group;

  private:
    // When ranks can't agree any more: they would take different places for the same memory.
    Error split(const Error& error) const;
    bool has_cpu_ranks_ = false;
    Result<void> find_device(bool is_on_cpu, std::vector<std::uint64_t>& mine) const;
    Result<void> prepare(Group& of, const CudaSeatOptions& options,
                         std::vector<std::uint64_t>& mine);
    Result<void> make_words(Group& of);
    Result<void> sit(const std::vector<std::uint64_t>& all, const std::vector<std::uint64_t>& mine,
                     Group& of, const CudaSeatOptions& options);
};

}  // namespace fabricshm
