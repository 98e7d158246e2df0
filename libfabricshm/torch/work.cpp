#include "libfabricshm/torch/work.hpp"

#include <utility>

namespace fabricshm::torch_backend {

FabricWork::FabricWork(int rank, c10d::OpType type, const char* title,
                       const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs)
    : c10d::Work(rank, type, title, inputs), outputs_(std::move(outputs)) {}

bool FabricWork::isCompleted() {
    if (!done()) nudge();
    return done();
}

bool FabricWork::isSuccess() const {
    std::lock_guard lock(state_mutex_);
    return done() && !error_;
}

std::exception_ptr FabricWork::exception() const {
    std::lock_guard lock(state_mutex_);
    return error_;
}

std::vector<at::Tensor> FabricWork::result() {
    TORCH_CHECK(done(),
                "fabricshm: the operation has no result before it is complete; wait() first");
    return outputs_;
}

void FabricWork::synchronize() {
    // CPU memory: completion is visibility.
}

FuturePtr FabricWork::getFuture() {
    FuturePtr future;
    {
        std::lock_guard lock(state_mutex_);
        if (future_) return future_;
        future_ =
            c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
        future = future_;
        if (!done()) future.reset();
    }
    if (!future) {
        nudge();  // nobody may ever wait() on the work itself: DDP does not
        return future_;
    }
    // Done already: completed here, outside of the mutex, since callbacks may ask for this work
    // again.
    if (error_) {
        future->setError(error_);
    } else {
        future->markCompleted(c10::IValue(outputs_));
    }
    return future;
}

void FabricWork::complete(std::exception_ptr error) {
    FuturePtr future;
    {
        std::lock_guard lock(state_mutex_);
        error_ = error;
        future = future_;
        // Release: pairs with done(). Under the mutex, so that getFuture() is before or after.
        done_.store(true, std::memory_order_release);
    }
    // The profiler's; once.
    if (recordFunctionEndCallback_) {
        recordFunctionEndCallback_();
        recordFunctionEndCallback_ = nullptr;
    }
    if (!future) return;
    if (error) {
        future->setError(error);
    } else {
        future->markCompleted(c10::IValue(outputs_));
    }
}

bool FabricWork::has_future() const {
    std::lock_guard lock(state_mutex_);
    return static_cast<bool>(future_);
}

void FabricWork::rethrow() const {
    std::exception_ptr error = exception();
    if (error) std::rethrow_exception(error);
}

CollectiveWork::CollectiveWork(std::shared_ptr<Executor> executor, int rank, c10d::OpType type,
                               const char* title, const std::vector<at::Tensor>& inputs,
                               std::vector<at::Tensor> outputs, Body body)
    : FabricWork(rank, type, title, inputs, std::move(outputs)),
      executor_(std::move(executor)),
      body_(std::move(body)) {}

void CollectiveWork::run() noexcept {
    std::exception_ptr error;
    try {
        // The body copies between tensors that may require gradients; that is not part of a graph.
        at::NoGradGuard no_grad;
        body_();
    } catch (...) {
        error = std::current_exception();
    }
    body_ = nullptr;  // staging tensors go now, not when the caller drops the work
    complete(error);
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
    // Without a time limit the waiter runs it itself.
    if (timeout == kNoTimeout) {
        if (!done()) executor_->finish(*this);
    } else if (!done()) {
        TORCH_CHECK(executor_->wait_for(*this, timeout), "Operation timed out!");
    }
    rethrow();
    return true;
}

void CollectiveWork::nudge() {
    executor_->hurry();
}

}  // namespace fabricshm::torch_backend
