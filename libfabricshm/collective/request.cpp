#include "libfabricshm/collective/request.hpp"

#include <utility>

#include "libfabricshm/base/reason.hpp"

namespace fabricshm {

bool PendingRequest::done() const noexcept {
    const std::lock_guard lock(mutex_);
    return result_.has_value();
}

// The text of an error stays with the thread that made it.
Result<void> PendingRequest::explained() const {
    if (result_->ok() || reason_.empty()) return *result_;
    return explain(result_->error(), "%s", reason_.c_str());
}

Result<void> PendingRequest::wait() {
    std::unique_lock lock(mutex_);
    // Bounded by the operation: it completes by its own deadline, whatever happens.
    changed_.wait(lock, [this] { return result_.has_value(); });
    return explained();
}

int PendingRequest::peer() const noexcept {
    const std::lock_guard lock(mutex_);
    return peer_;
}

void PendingRequest::on_complete(std::function<void(Result<void>)> callback) {
    std::unique_lock lock(mutex_);
    if (!result_.has_value()) {
        callbacks_.push_back(std::move(callback));
        return;
    }
    const Result<void> result = explained();
    lock.unlock();
    callback(result);
}

void PendingRequest::complete(Result<void> result, int peer) {
    std::unique_lock lock(mutex_);
    // The first result counts.
    if (result_.has_value()) return;
    result_ = result;
    peer_ = peer;
    if (!result.ok()) reason_ = reason_of(result.error());
    const auto callbacks = std::exchange(callbacks_, {});
    changed_.notify_all();
    lock.unlock();
    // Without the mutex, for a callback may read the request.
    for (const auto& callback : callbacks) callback(result);
}

}  // namespace fabricshm
