#include "libfabricshm/torch/cuda_work.hpp"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace fabricshm::torch_backend {

CudaWork::CudaWork(const std::shared_ptr<CudaLane>& lane, int rank, c10d::OpType type,
                   const char* title, const char* what, const std::vector<at::Tensor>& inputs,
                   std::vector<at::Tensor> outputs)
    : c10d::Work(rank, type, title, inputs),
      lane_(lane),
      what_(what),
      outputs_(std::move(outputs)) {}

void CudaWork::launch(const std::function<void()>& body, std::vector<at::Tensor> tensors) {
    in_flight_ = lane_.lock()->run(std::move(tensors), body);
    // The profiler's; once. It sees what the host did, and the kernels by itself.
    if (recordFunctionEndCallback_) {
        recordFunctionEndCallback_();
        recordFunctionEndCallback_ = nullptr;
    }
}

std::exception_ptr CudaWork::exception() const {
    const auto lane = lane_.lock();
    if (!lane) return nullptr;
    try {
        lane->check(what_);
    } catch (...) {
        return std::current_exception();
    }
    return nullptr;
}

bool CudaWork::has_passed() const {
    TORCH_CHECK(!in_flight_->is_captured(),
                "fabricshm: this operation was captured: it is done at "
                "each launch of its graph; ask the stream of the launch");
    return in_flight_->has_passed();
}

bool CudaWork::isCompleted() {
    // A group that failed ends its kernels: there is nothing more to come.
    return lane_.expired() || has_passed() || exception();
}

bool CudaWork::isSuccess() const {
    return (lane_.expired() || has_passed()) && !exception();
}

void CudaWork::synchronize() {
    if (const auto lane = lane_.lock()) in_flight_->block(lane->stream().current());
    // From here on memory that is given back is used behind that stream's wait.
    in_flight_->release_tensors();
}

bool CudaWork::wait(std::chrono::milliseconds timeout) {
    const auto lane = lane_.lock();
    if (!lane) return true;
    const bool blocks = blocks_host_ || timeout != kNoTimeout;
    if (blocks && !in_flight_->is_captured()) wait_on_host(*lane, timeout);
    synchronize();
    lane->check(what_);
    return true;
}

// Until this operation's event and not until the stream's end: others may have been put behind it.
void CudaWork::wait_on_host(CudaLane& lane, std::chrono::milliseconds timeout) const {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::microseconds kMaxPause{1000};
    const auto begun = Clock::now();
    std::chrono::microseconds pause{10};
    while (!in_flight_->has_passed()) {
        // A failure ends what is on the stream; it is waited for, since it may still use tensors.
        (void)exception();
        const bool is_late = timeout != kNoTimeout && Clock::now() - begun >= timeout;
        if (is_late) lane.check(what_);
        TORCH_CHECK(!is_late, "Operation timed out!");
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, kMaxPause);
    }
}

FuturePtr CudaWork::getFuture() {
    const std::lock_guard lock(future_mutex_);
    if (future_) return future_;
    const auto lane = lane_.lock();
    TORCH_CHECK(lane, "fabricshm: the process group has been destroyed");
    auto made = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{lane->device()});
    // The future keeps what the current stream has come to.
    const c10::StreamGuard current(lane->stream().stream());
    made->markCompleted(c10::IValue(outputs_));
    return future_ = std::move(made);
}

}  // namespace fabricshm::torch_backend
