// What a collective returns: its completion, result and error.

#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/version.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "libfabricshm/torch/executor.hpp"

namespace fabricshm::torch_backend {

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

/// State that both kinds of work share: done or not, the error, and a future made on demand.
class FabricWork : public c10d::Work {
  public:
    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    std::vector<at::Tensor> result() override;
    void synchronize() override;
    FuturePtr getFuture() override;

    /// Acquire: who sees true sees the outputs.
    bool done() const { return done_.load(std::memory_order_acquire); }

  protected:
    FabricWork(int rank, c10d::OpType type, const char* title,
               const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs);

    /// Ends the work, once. Callbacks of its future run on this thread.
    void complete(std::exception_ptr error);
    bool has_future() const;
    /// Raises its error, if it has one.
    void rethrow() const;
    /// Somebody asks for progress without waiting for it.
    virtual void nudge() {}

  private:
    mutable std::mutex state_mutex_;
    std::atomic<bool> done_{false};
    std::exception_ptr error_;
    std::vector<at::Tensor> outputs_;
    FuturePtr future_;  // null until somebody asks
};

class CollectiveWork final : public FabricWork {
  public:
    using Body = std::function<void()>;

    /// `body` does the operation and raises when it fails; it runs once, on any thread. `title` is
    /// what the profiler shows.
    CollectiveWork(std::shared_ptr<Executor> executor, int rank, c10d::OpType type,
                   const char* title, const std::vector<at::Tensor>& inputs,
                   std::vector<at::Tensor> outputs, Body body);

    bool wait(std::chrono::milliseconds timeout) override;

    /// By the executor only.
    void run() noexcept;

  protected:
    void nudge() override;

  private:
    std::shared_ptr<Executor> executor_;
    Body body_;
};

}  // namespace fabricshm::torch_backend
