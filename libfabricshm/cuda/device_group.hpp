// DeviceGroup: one rank of a group whose operations run on GPUs, in the order of a stream, or on
// CPUs, in the calling thread.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/cuda/launch.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/cuda/device_arena.hpp"
#include "libfabricshm/cuda/device_exports.hpp"
#include "libfabricshm/cuda/executor.hpp"
#include "libfabricshm/cuda/group_gate.hpp"
#include "libfabricshm/os/poison.hpp"

namespace fabricshm::gpu {

/// What the ranks agreed on, and where this one's memory is. Offsets are from the arena's start.
struct DevicePlace {
    int rank = 0;
    int world = 1;
    Bytes block = 0;  // the words of the group, kernels::cuda::device_group_bytes(world)
    std::uint32_t epoch = 1;
    Bytes stage = 0;        // of this rank: two halves, for what it gives and what it receives
    Bytes stage_bytes = 0;  // the same on all ranks: decides for all how an operation is cut
    int ranks_here = 1;     // on this device, which share its multiprocessors
    Duration timeout = std::chrono::seconds(30);  // of one operation's waits
};

/// One operation. Elements; buffers are addresses of this process or of the device.
struct DeviceCall {
    kernels::cuda::CollectiveKind kind = kernels::cuda::CollectiveKind::kBarrier;
    kernels::DType dtype = kernels::DType::kF32;
    kernels::ReduceOp op = kernels::ReduceOp::kSum;
    int root = 0;
    std::uint64_t count = 0;  // of kAllGather and kReduceScatter: of one rank's part
    const void* input = nullptr;
    void* output = nullptr;
};

/// Of DeviceStep::factors: those of now, and room for later ones (FABRICSHM_CUDA_FACTORS_BYTES).
inline constexpr Bytes kFactorsBytes = 64;

/// A step; see kernels::cuda::StepArgs. Buffers as above; null where there is none.
struct DeviceStep {
    kernels::Rule rule = kernels::Rule::kAdamW;
    kernels::DType gradient_type = kernels::DType::kF32;
    kernels::DType publish_type = kernels::DType::kF32;
    float scale = 1;
    std::uint64_t total = 0;
    std::uint64_t begin = 0;
    std::uint64_t count = 0;
    const void* factors = nullptr;
    const void* weights = nullptr;
    void* parameters = nullptr;
    void* first = nullptr;
    void* second = nullptr;
    void* maximum = nullptr;
    const void* gradient = nullptr;
    void* publish = nullptr;
};

/// Whether the group can go on, and if not why: kPeer names a rank that died. For fabricshm::Group,
/// which this folder does not know.
using PeerCheck = std::function<Result<void>()>;

/// Lets all ranks know that this thread touched a lost page inside the guard; returns kPoisoned,
/// with the region that the page is in. Group::intact(), likewise.
using LossReport = std::function<Result<void>(const PoisonGuard&)>;

/// Fills in the words of a group before any rank is at work: by one rank, then a barrier.
void format_device_group(std::byte* block, int world, std::uint32_t epoch) noexcept;

/// Operations are put on streams and do not wait; one rank's are one after the other (one stream,
/// or events between). All ranks put the same ones in the same order. Used by one thread at a time,
/// but for status() and abort(): any.
///
/// No host thread is at work during an operation. A rank whose process has died is noticed by
/// whatever is called next here, at most every kPeerCheckEvery, which then ends the waits of all
/// ranks; without such a call they end at the timeout. A rank on a CPU (make_on_host()) is at work
/// in run() and step(), which return when the operation has ended, and looks while it waits.
class DeviceGroup {
  public:
    static constexpr Duration kPeerCheckEvery = std::chrono::milliseconds(50);
    /// Kernels look after the abort word within microseconds, but not while they work on the data.
    static constexpr Duration kGrace = std::chrono::seconds(5);

    static Result<std::unique_ptr<DeviceGroup>> make(std::shared_ptr<DeviceArena> arena,
                                                     const DevicePlace& place, PeerCheck check);
    /// A rank without a GPU, whose arena is [base, base + bytes): mapped longer than this lives. It
    /// has no streams, so that all of its streams are null.
    /// A page of its buffers that the hardware has lost ends the operation with kPoisoned.
    static Result<std::unique_ptr<DeviceGroup>> make_on_host(std::byte* base, Bytes bytes,
                                                             const DevicePlace& place,
                                                             PeerCheck check,
                                                             LossReport report = {});
    /// As finish() where that was not called, but does not touch the block, which may have been
    /// given back. While a kernel is_stuck(), what it uses of the process stays: the arena's
    /// registration, and memory of peers that is open.
    ~DeviceGroup();
    DeviceGroup(const DeviceGroup&) = delete;
    DeviceGroup& operator=(const DeviceGroup&) = delete;

    /// Puts the operation on the stream. kInvalid: a buffer that the device does not reach, or that
    /// overlaps. kUnsupported. An earlier failure of the group: that. Nothing was put on the stream
    /// after those; kBroken: perhaps a part of it, and the group has ended.
    Result<void> run(const DeviceCall& call, Handle stream);
    Result<void> step(const DeviceStep& step, Handle stream);

    /// This rank's part of an export, which all ranks make at the same time: see DeviceExports.
    /// Nothing is used yet. kUnsupported also for a rank on a CPU; kInvalid also in the arena; and
    /// as status().
    Result<std::unique_ptr<DeviceExports>> offer(const void* pointer, Bytes bytes);
    /// From here on, instead of what was exported before, which is closed; null: nothing. By all
    /// ranks while no operation runs, between two barriers. The epoch rises: a graph that was
    /// captured before has other windows, and is refused by its own kernels.
    void use(std::unique_ptr<DeviceExports> exports) noexcept;
    /// The ranks whose memory peers reach, a bit for each.
    std::uint32_t exported() const noexcept { return exports_ != nullptr ? exports_->kept() : 0; }
    int rank() const noexcept { return place_.rank; }

    /// What has become of the operations so far, and whether all peers live. Does not wait.
    Result<void> status();
    /// The same for polls of the library, whose caller does not hear of it.
    Result<void> look();

    /// status() until the stream has nothing to do any more; kTimeout at the deadline.
    Result<void> wait(Handle stream, TimePoint deadline);

    /// Waits until what was put on streams has ended; of graphs, what has begun.
    Result<void> settle(TimePoint deadline);

    /// Ends the waits of all ranks: they fail with kPeer, naming `rank`. Thread-safe.
    void abort(int rank) noexcept;

    /// Leaves: the group takes no more operations. Waits until what was put on streams has ended,
    /// at most until the deadline; then ends what still waits for peers, and lets nothing begin any
    /// more. Kernels that begin later, of graphs too, do nothing. Peers that need this rank for
    /// more fail with kPeer, which names it. Asks no stream: the caller may have destroyed it, and
    /// another may be captured.
    ///
    /// kTimeout: something was ended or will not begin; what an operation came to that was waited
    /// for. After that no kernel of this rank touches memory of others, unless it is_stuck(): one
    /// goes on although it was asked to end, for `grace` after the deadline.
    Result<void> finish(TimePoint deadline, Duration grace = kGrace);
    bool is_stuck() const noexcept { return is_stuck_; }

  private:
    struct Buffer;
    struct Piece;
    DeviceGroup(std::unique_ptr<Executor> executor, const DevicePlace& place, PeerCheck check,
                LossReport report);
    Result<void> begin(Handle stream);
    Result<void> end(TimePoint deadline, Duration grace);
    Result<Buffer> find(const void* pointer, Bytes bytes, const char* name) const;
    Result<void> find_own(const DeviceStep& step, kernels::cuda::StepArgs& args) const;
    Result<void> run_piece(const DeviceCall& call, const Piece& piece, Handle stream);
    Result<void> copy(Pointer from, Pointer to, Bytes bytes, Handle stream);
    Result<void> launch(Kernel kernel, Bytes bytes, const void* argument, Handle stream);
    kernels::cuda::GroupArgs group_args() const noexcept;
    Pointer stage_half(int half) const noexcept;
    kernels::cuda::Place stage_place(int half) const noexcept;
    Bytes half_bytes() const noexcept { return place_.stage_bytes / 2; }
    bool is_harmed(const PoisonGuard& guard) noexcept;
    Error loss() const;
    Result<void> check_peers();
    Result<void> failure();  // of this rank's own operations
    Result<void> error_of(kernels::cuda::Report report);

    std::unique_ptr<DeviceExports> exports_;
    std::unique_ptr<Executor> executor_;
    GroupGate gate_;
    const DevicePlace place_;
    const PeerCheck check_;
    const LossReport report_;
    std::byte* const block_;  // DeviceGroupHeader, in this process
    std::uint32_t epoch_;
    std::atomic<bool> exported_before_{false};  // read by status(), of any thread
    std::atomic<std::int64_t> next_check_ns_{0};
    std::atomic<bool> launch_failed_{false};
    std::atomic<bool> is_reported_{false};  // a failure, to the caller
    std::atomic<bool> is_finished_{false};
    bool is_stuck_ = false;
    std::atomic<std::int64_t> lost_region_{-1};  // -1: no page was lost; 0: in no region
};

/// Elements of one piece of an operation: all that do not fit into half of a stage are cut, on
/// every rank alike, wherever its buffers are. Whole 16 bytes, or all of `count`.
std::uint64_t elements_of_piece(kernels::cuda::CollectiveKind kind, kernels::DType dtype,
                                std::uint64_t count, int world, Bytes half_bytes) noexcept;

}  // namespace fabricshm::gpu
