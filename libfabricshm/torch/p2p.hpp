// send and recv: the library's own asynchronous requests, concurrent with the collectives.

#pragma once

#include <condition_variable>
#include <mutex>

#include "libfabricshm/torch/call.hpp"
#include "libfabricshm/torch/work.hpp"

namespace fabricshm::torch_backend {

class PointToPointWork final : public FabricWork {
  public:
    /// Starts the transfer of `tensor`'s bytes. `call` has kind, peer, tag and timeout; its buffer
    /// and count are filled in here. Callbacks run in `executor`. Raises when it cannot be started.
    static c10::intrusive_ptr<PointToPointWork> start(const Communicator& communicator,
                                                      std::shared_ptr<Executor> executor,
                                                      fabricshm_call call, c10d::OpType type,
                                                      const char* title, const at::Tensor& tensor);

    PointToPointWork(std::shared_ptr<Executor> executor, int rank, c10d::OpType type,
                     const char* title, const at::Tensor& tensor);

    bool wait(std::chrono::milliseconds timeout) override;
    /// The rank that sent what was received. -1 before it is complete.
    int sourceRank() const override;

  protected:
    void expect_callbacks() override;

  private:
    struct Transfer;

    void end(std::exception_ptr error, int peer);
    void wake();

    std::shared_ptr<Executor> executor_;    // for callbacks, which may block
    std::shared_ptr<CallbackScope> scope_;  // in whose callback the future was asked for, or null
    mutable std::mutex mutex_of_end_;
    std::condition_variable ended_;
    int peer_ = -1;
};

}  // namespace fabricshm::torch_backend
