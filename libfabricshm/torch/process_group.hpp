// The c10d backend `fabricshm`: torch.distributed's operations over the fabric.

#pragma once

#include <torch/version.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "libfabricshm/torch/call.hpp"
#include "libfabricshm/torch/coalesced_work.hpp"
#include "libfabricshm/torch/cuda_operations.hpp"
#include "libfabricshm/torch/ending.hpp"
#include "libfabricshm/torch/executor.hpp"
#include "libfabricshm/torch/work.hpp"

namespace fabricshm::torch_backend {

#if TORCH_VERSION_MAJOR >= 2
using GroupBase = c10d::Backend;  // 2.x: one per device type inside a ProcessGroup
#else
using GroupBase = c10d::ProcessGroup;
#endif

using TensorList = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;
using Milliseconds = std::chrono::milliseconds;

/// Collectives run in the order of their calls (executor.hpp); sends and receives concurrently with
/// them. Takes dense tensors of any stride, of the CPU and of one CUDA device. Those of the device
/// are in the order of a stream (cuda_lane.hpp), and not ordered with the CPU's. Errors of the
/// fabric are raised by Work::wait(); those of a device also by the calls that follow.
class ProcessGroupFabricshm final : public GroupBase {
  public:
    /// Blocks until all ranks have called it with the same store.
    ProcessGroupFabricshm(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                          Milliseconds timeout);
    /// Finishes what was submitted, then leaves the group.
    ~ProcessGroupFabricshm() override;

    const std::string getBackendName() const override { return "fabricshm"; }

    using WorkRef = c10::intrusive_ptr<c10d::Work>;

    WorkRef broadcast(TensorList& tensors, const c10d::BroadcastOptions& options) override;
    WorkRef allreduce(TensorList& tensors, const c10d::AllreduceOptions& options) override;
    WorkRef allreduce_coalesced(TensorList& tensors,
                                const c10d::AllreduceCoalescedOptions& options) override;
    WorkRef reduce(TensorList& tensors, const c10d::ReduceOptions& options) override;
    WorkRef allgather(TensorLists& outputs, TensorList& inputs,
                      const c10d::AllgatherOptions& options) override;
    WorkRef _allgather_base(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& options) override;
    WorkRef allgather_coalesced(TensorLists& outputs, TensorList& inputs,
                                const c10d::AllgatherOptions& options) override;
    WorkRef gather(TensorLists& outputs, TensorList& inputs,
                   const c10d::GatherOptions& options) override;
    WorkRef scatter(TensorList& outputs, TensorLists& inputs,
                    const c10d::ScatterOptions& options) override;
    WorkRef reduce_scatter(TensorList& outputs, TensorLists& inputs,
                           const c10d::ReduceScatterOptions& options) override;
    WorkRef _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                 const c10d::ReduceScatterOptions& options) override;
    WorkRef alltoall_base(at::Tensor& output, at::Tensor& input,
                          std::vector<std::int64_t>& output_splits,
                          std::vector<std::int64_t>& input_splits,
                          const c10d::AllToAllOptions& options) override;
    WorkRef alltoall(TensorList& outputs, TensorList& inputs,
                     const c10d::AllToAllOptions& options) override;
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
    WorkRef allgather_into_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                            const c10d::AllgatherOptions& options) override;
    WorkRef reduce_scatter_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                            const c10d::ReduceScatterOptions& options) override;
#endif
    // What later versions of torch have added to their Backend, without the word `override`: in
    // older ones these are methods that torch does not call.
    /// Of 2.14: each rank's `input`, one behind the other in `output` of the root alone.
    WorkRef gather_single(at::Tensor& output, at::Tensor& input,
                          const c10d::GatherOptions& options);
    /// Of 2.14: the timeout of what is called from now on. On a device it stays what it was.
    void setTimeout(Milliseconds timeout) {
        timeout_ = timeout;
    }
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
    /// What is called from here on is ended by the one work that endCoalescing() returns. Nothing
    /// is held back: all of it starts at once, as ever.
    void startCoalescing() override;
    WorkRef endCoalescing() override;
#endif
    WorkRef barrier(const c10d::BarrierOptions& options) override;
    WorkRef send(TensorList& tensors, int to, int tag) override;
    WorkRef recv(TensorList& tensors, int from, int tag) override;
    WorkRef recvAnysource(TensorList& tensors, int tag) override;

    /// A barrier that says which ranks are missing. Goes through the store, so that it also works
    /// when the group is broken.
    void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

    /// Of this rank; never null.
    const Communicator& communicator() const {
        return *communicator_;
    }

    /// Of 2.6: ends the group at once. What is outstanding on this rank fails, what others need
    /// this rank for fails there with its number, and so does all that is called later. Waits for
    /// nothing but the callbacks of what has failed; again it does nothing. Thread-safe.
    void abort();
    /// Of 2.6: waits until all that is outstanding has ended, and leaves the group. What is called
    /// later fails. Raises when the group's timeout passes first: then it is as after abort(), and
    /// left. Again it does nothing. Thread-safe; in a callback it does not wait, and the group is
    /// left when it is destroyed.
    void shutdown();

    void setSequenceNumberForGroup() override {}  // every rank counts from 0
    std::uint64_t getSequenceNumberForGroup() override;

  private:
    using Body = std::function<void()>;

    // What every collective passes on. `bytes` decides how long the worker leaves it to its caller.
    struct Submission {
        c10d::OpType type;
        const char* title;
        std::size_t bytes;
        const TensorList& inputs;
        TensorList outputs;
    };

    WorkRef submit(Submission submission, Body body);
    /// Passes `work` on; within startCoalescing() and endCoalescing() it is remembered.
    WorkRef noted(WorkRef work);
    WorkRef transfer(fabricshm_kind kind, TensorList& tensors, int peer, int tag);

    /// Where an operation on `tensor` of a CUDA device goes. The first one waits until all ranks
    /// have come to theirs.
    CudaTarget on_device(const at::Tensor& tensor, c10d::OpType type, const char* title);
    void join_cuda(c10::Device device);
    /// For what has no kernel: by way of the CPU, in the calling thread.
    WorkRef all_to_all_on_host(const TensorList& outputs, const TensorList& inputs,
                               const std::function<WorkRef(TensorList&, TensorList&)>& operation);

    /// c10d's "unset" becomes the group's own.
    Milliseconds timeout_of(Milliseconds option) const;
    WorkRef reduce_dense(TensorList tensors, const c10d::ReduceOp& op, Milliseconds timeout,
                         c10d::OpType type);

    c10::intrusive_ptr<c10d::Store> store_;
    std::atomic<Milliseconds> timeout_;  // relaxed is enough: a number by itself
    std::shared_ptr<Communicator> communicator_;
    std::shared_ptr<Executor> executor_;
    Ending ending_;
    std::atomic<std::uint64_t> sequence_{0};  // collectives submitted; read by any thread
    std::uint64_t monitored_barriers_ = 0;
    std::mutex cuda_mutex_;           // held while the ranks join
    std::shared_ptr<CudaLane> cuda_;  // null before the first operation of CUDA tensors
    std::mutex coalescing_mutex_;
    std::vector<WorkRef> coalesced_;
    bool is_coalescing_ = false;
};

}  // namespace fabricshm::torch_backend
