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

    /// Acquire: a thread that sees true sees the outputs.
    bool done() const { return done_.load(std::memory_order_acquire); }
    /// Done, and the callbacks of its future have ended.
    bool settled() const { return settled_.load(std::memory_order_acquire); }
    /// What a wait() on this thread waits for. A callback may be the one that the others wait for.
    bool over() const { return thread_in_callback() ? done() : settled(); }

  protected:
    FabricWork(int rank, c10d::OpType type, const char* title,
               const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs);

    /// Ends the work, once. True: it has a future, and fulfil() has to follow.
    bool conclude(std::exception_ptr error);
    /// Completes the future. Its callbacks run on this thread, and may block.
    void fulfil() noexcept;
    bool has_future() const;
    /// Raises its error, if it has one.
    void rethrow() const;
    /// Progress is wanted without waiting for it.
    virtual void nudge() {}
    /// The same, and a future is about to be made.
    virtual void expect_callbacks() {}

  private:
    mutable std::mutex state_mutex_;
    std::atomic<bool> done_{false};
    std::atomic<bool> settled_{false};
    std::exception_ptr error_;
    std::vector<at::Tensor> outputs_;
    FuturePtr future_;  // null until it is asked for
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

  protected:
    void nudge() override;
    void expect_callbacks() override;

  private:
    friend class Executor;

    /// Runs the body, unless there is a `refusal`. True: fulfil() has to follow.
    bool run(std::exception_ptr refusal) noexcept;

    // The executor's, under its mutex.
    Place place_;                           // in the order of all operations
    std::shared_ptr<CallbackScope> scope_;  // of the future's callbacks; null: not asked for yet

    std::shared_ptr<Executor> executor_;
    Body body_;
};

}  // namespace fabricshm::torch_backend
