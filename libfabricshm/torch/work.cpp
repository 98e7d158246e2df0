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
    // Before there is a future that it could complete. Often the work itself is never waited for:
    // DDP waits for futures.
    if (!has_future()) expect_callbacks();
    FuturePtr future;
    {
        std::lock_guard lock(state_mutex_);
        if (future_) return future_;
        // Values on a device are waited for by streams.
        std::vector<c10::Device> devices;
        if (!outputs_.empty() && outputs_[0].is_cuda()) devices = {outputs_[0].device()};
        future_ = c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), std::move(devices));
        if (!done()) return future_;
        future = future_;
    }
    // Done already: completed here, outside of the mutex, since callbacks may ask for this work
    // again.
    fulfil();
    return future;
}

bool FabricWork::conclude(std::exception_ptr error) {
    bool has_future = false;
    {
        std::lock_guard lock(state_mutex_);
        error_ = error;
        has_future = static_cast<bool>(future_);
        // Release: pairs with done(). Under the mutex, so that getFuture() is before or after.
        done_.store(true, std::memory_order_release);
    }
    // The profiler's; once.
    if (recordFunctionEndCallback_) {
        recordFunctionEndCallback_();
        recordFunctionEndCallback_ = nullptr;
    }
    // Release: pairs with settled(). A future that is asked for from now on has no callbacks yet.
    if (!has_future) settled_.store(true, std::memory_order_release);
    return has_future;
}

// Neither the future nor the error changes any more once it is done.
void FabricWork::fulfil() noexcept {
    try {
        if (error_) {
            future_->setError(error_);
        } else {
            future_->markCompleted(c10::IValue(outputs_));
        }
    } catch (const std::exception& error) {
        // Of a callback that has no future of its own to put it into.
        TORCH_WARN("fabricshm: a callback has failed: ", error.what());
    }
    settled_.store(true, std::memory_order_release);  // pairs with settled()
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

bool CollectiveWork::run(std::exception_ptr refusal) noexcept {
    std::exception_ptr error = std::move(refusal);
    try {
        // The body copies between tensors that may require gradients; that is not part of a graph.
        at::NoGradGuard no_grad;
        if (!error) body_();
    } catch (...) {
        error = std::current_exception();
    }
    // Staging tensors go now, not when the caller drops the work.
    if (!Executor::exiting()) body_ = nullptr;
    return conclude(error);
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
    // Without a time limit the waiter runs it itself.
    if (timeout == kNoTimeout) {
        if (!over()) executor_->finish(*this);
    } else if (!over()) {
        TORCH_CHECK(executor_->wait_for(*this, timeout), "Operation timed out!");
    }
    rethrow();
    return true;
}

void CollectiveWork::nudge() {
    executor_->hurry(*this);
}

void CollectiveWork::expect_callbacks() {
    if (!done()) executor_->expect_callbacks(*this);
}

}  // namespace fabricshm::torch_backend
