// send and recv: the library's own asynchronous requests, beside the collectives.

#pragma once

#include <condition_variable>
#include <mutex>

#include "libfabricshm/torch/call.hpp"
#include "libfabricshm/torch/work.hpp"

namespace fabricshm::torch_backend {

class PointToPointWork final : public FabricWork {
  public:
    /// Starts the transfer of `tensor`'s bytes. `call` has kind, peer, tag and timeout; its buffer
    /// and count are filled in here. Raises when it cannot be started.
    static c10::intrusive_ptr<PointToPointWork> start(const Communicator& communicator,
                                                      fabricshm_call call, c10d::OpType type,
                                                      const char* title, const at::Tensor& tensor);

    PointToPointWork(int rank, c10d::OpType type, const char* title, const at::Tensor& tensor);

    bool wait(std::chrono::milliseconds timeout) override;
    /// Who sent what was received. -1 before it is complete.
    int sourceRank() const override;

  private:
    struct Transfer;

    void end(std::exception_ptr error, int peer);

    mutable std::mutex mutex_of_end_;
    std::condition_variable ended_;
    int peer_ = -1;
};

}  // namespace fabricshm::torch_backend
