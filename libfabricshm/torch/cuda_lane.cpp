#include "libfabricshm/torch/cuda_lane.hpp"

#include <c10/core/StreamGuard.h>
#include <fabricshm/cuda.h>
#include <pthread.h>

#include <system_error>
#include <utility>

#include "libfabricshm/torch/executor.hpp"

namespace fabricshm::torch_backend {

void InFlight::release_tensors() {
    std::vector<at::Tensor> freed;  // after the lock: the last owner of one may run Python
    const std::lock_guard lock(mutex_);
    freed.swap(tensors_);
}

CudaLane::CudaLane(std::shared_ptr<Communicator> communicator, const CudaStream& stream,
                   std::chrono::milliseconds timeout)
    : communicator_(std::move(communicator)), stream_(stream), timeout_(timeout) {
    try {
        watcher_ = std::thread([this] { watch(); });
        pthread_setname_np(watcher_.native_handle(), "fabricshm-cuda");
    } catch (const std::system_error& error) {
        // Deaths are still seen by what is called next, or at the timeout.
        TORCH_WARN("fabricshm: cannot start a thread: ", error.what());
    }
}

CudaLane::~CudaLane() {
    if (communicator_->is_of_parent()) {  // the child of a fork has neither stream nor thread
        if (watcher_.joinable()) watcher_.detach();
        return;
    }
    // Still watched: a peer that dies now ends what is waited for.
    const int code = fabricshm_cuda_wait(group(), stream_.handle(), timeout_.count());
    if (code == FABRICSHM_ETIMEOUT) fabricshm_cuda_abort(group());
    {
        const std::lock_guard lock(watch_mutex_);
        stopping_ = true;
    }
    stopped_.notify_all();
    if (watcher_.joinable()) watcher_.join();
}

void CudaLane::watch() {
    std::unique_lock lock(watch_mutex_);
    while (!stopped_.wait_for(lock, kWatchEvery, [this] { return stopping_; })) {
        // At the program's end what it looks at is going away.
        if (Executor::exiting()) return;
        if (fabricshm_cuda_status(group()) != FABRICSHM_OK) return;  // it stays so
    }
}

void CudaLane::check(const char* what) const {
    const int code = fabricshm_cuda_status(group());
    if (code != FABRICSHM_OK) communicator_->outstanding()->check(what);
    torch_backend::check(code, what);
}

void CudaLane::drop_what_has_passed() {
    while (!held_.empty() && held_.front()->has_passed()) {
        held_.front()->release_tensors();
        held_.pop_front();
    }
}

std::shared_ptr<InFlight> CudaLane::run(std::vector<at::Tensor> tensors,
                                        const std::function<void()>& body) {
    // Asked before the current stream is another one. Events can't be asked during a capture, and
    // what is captured is not done when it is called: its tensors belong to the graph's owner.
    const bool captured = is_capturing();
    const std::lock_guard lock(mutex_);
    if (!captured) drop_what_has_passed();
    arrival_.record(stream_.current());
    arrival_.block(stream_.stream());
    auto made = std::make_shared<InFlight>(std::move(tensors), captured);
    {
        const c10::StreamGuard current(stream_.stream());
        // Copies between tensors that may require gradients are not part of a graph.
        const at::NoGradGuard no_grad;
        body();
        made->record(stream_.stream());
    }
    if (!captured) held_.push_back(made);
    return made;
}

}  // namespace fabricshm::torch_backend
