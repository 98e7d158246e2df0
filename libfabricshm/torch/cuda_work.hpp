// What an operation on a CUDA device returns: an event of the group's stream.

#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "libfabricshm/torch/cuda_lane.hpp"
#include "libfabricshm/torch/work.hpp"

namespace fabricshm::torch_backend {

/// The operation is on the stream already. wait() makes the caller's current stream wait and does
/// not wait itself, unless it was given a timeout or the operation is a barrier. Of an operation
/// that was captured it never does: a graph's end is asked of the stream that it is launched on.
class CudaWork final : public c10d::Work {
  public:
    /// `what` is for the text of errors. With `blocks`, wait() returns when the device has done it.
    CudaWork(const std::shared_ptr<CudaLane>& lane, int rank, c10d::OpType type, const char* title,
             const char* what, const std::vector<at::Tensor>& inputs,
             std::vector<at::Tensor> outputs);

    /// Once: puts the operation on the stream.
    void launch(const std::function<void()>& body, std::vector<at::Tensor> tensors);
    void block_host() { blocks_host_ = true; }

    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    std::vector<at::Tensor> result() override { return outputs_; }
    void synchronize() override;
    bool wait(std::chrono::milliseconds timeout) override;
    /// Completed, with values that streams have to wait for; as torch's futures do by themselves.
    FuturePtr getFuture() override;

  private:
    bool has_passed() const;
    void wait_on_host(CudaLane& lane, std::chrono::milliseconds timeout) const;

    // A work may outlive its group, which waited for all of its operations before it went.
    const std::weak_ptr<CudaLane> lane_;
    const char* const what_;
    std::shared_ptr<InFlight> in_flight_;
    std::vector<at::Tensor> outputs_;
    bool blocks_host_ = false;
    std::mutex future_mutex_;
    FuturePtr future_;  // null until it is asked for
};

/// An operation that is over for the host, whose outputs were copied on the current stream.
class CopiedWork final : public FabricWork {
  public:
    CopiedWork(int rank, c10d::OpType type, const std::vector<at::Tensor>& outputs)
        : FabricWork(rank, type, nullptr, {}, outputs) {
        conclude(nullptr);
    }
    bool wait(std::chrono::milliseconds) override { return true; }
};

}  // namespace fabricshm::torch_backend
