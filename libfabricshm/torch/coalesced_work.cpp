#include "libfabricshm/torch/coalesced_work.hpp"

#include <algorithm>
#include <utility>

namespace fabricshm::torch_backend {

CoalescedWork::CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
    : c10d::Work(rank, c10d::OpType::UNKNOWN), works_(std::move(works)) {}

bool CoalescedWork::isCompleted() {
    // Each is asked: it may only start because of that.
    bool all = true;
    for (const auto& work : works_) all = work->isCompleted() && all;
    return all;
}

bool CoalescedWork::isSuccess() const {
    return std::all_of(works_.begin(), works_.end(),
                       [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
    for (const auto& work : works_) {
        if (std::exception_ptr error = work->exception()) return error;
    }
    return nullptr;
}

std::vector<at::Tensor> CoalescedWork::result() {
    std::vector<at::Tensor> all;
    for (const auto& work : works_) {
        const std::vector<at::Tensor> outputs = work->result();
        all.insert(all.end(), outputs.begin(), outputs.end());
    }
    return all;
}

void CoalescedWork::synchronize() {
    for (const auto& work : works_) work->synchronize();
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
    for (const auto& work : works_) work->wait(timeout);
    return true;
}

FuturePtr CoalescedWork::getFuture() {
    const std::lock_guard lock(future_mutex_);
    if (future_) return future_;
    c10::List<FuturePtr> futures(
        c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
    for (const auto& work : works_) futures.push_back(work->getFuture());
    future_ = c10::collectAll(futures)->then(
        [](c10::ivalue::Future& all) {
            c10::List<at::Tensor> tensors;
            for (const c10::IValue& future : all.value().toListRef()) {
                const FuturePtr done = future.toFuture();
                for (const c10::IValue& tensor : done->value().toListRef()) {
                    tensors.push_back(tensor.toTensor());
                }
            }
            return c10::IValue(tensors);
        },
        c10::ListType::create(c10::TensorType::get()));
    return future_;
}

}  // namespace fabricshm::torch_backend
