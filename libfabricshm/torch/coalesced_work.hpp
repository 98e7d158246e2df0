// One work for several: what torch's _coalescing_manager returns.

#pragma once

#include <mutex>
#include <vector>

#include "libfabricshm/torch/work.hpp"

namespace fabricshm::torch_backend {

/// Over when all of `works` are. Those run on as they would without it.
class CoalescedWork final : public c10d::Work {
  public:
    CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works);

    bool isCompleted() override;
    bool isSuccess() const override;
    /// Of the first one that has failed.
    std::exception_ptr exception() const override;
    /// Of all of them, in their order.
    std::vector<at::Tensor> result() override;
    void synchronize() override;
    /// `timeout` is for each of them.
    bool wait(std::chrono::milliseconds timeout) override;
    /// Its value is that of result().
    FuturePtr getFuture() override;

  private:
    const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
    std::mutex future_mutex_;
    FuturePtr future_;  // null until it is asked for
};

}  // namespace fabricshm::torch_backend
