#include "libfabricshm/torch/outstanding.hpp"

#include <stdexcept>
#include <string>

namespace fabricshm::torch_backend {

std::shared_ptr<void> Outstanding::begin() {
    const std::lock_guard lock(mutex_);
    ++transfers_;
    return {this, [self = shared_from_this()](void*) {
                const std::lock_guard held(self->mutex_);
                --self->transfers_;
                self->changed_.notify_all();
            }};
}

bool Outstanding::none() const {
    const std::lock_guard lock(mutex_);
    return transfers_ == 0;
}

bool Outstanding::wait_for_none(std::chrono::steady_clock::time_point deadline) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [this] { return transfers_ == 0; });
}

void Outstanding::end(const char* why) noexcept {
    const char* none = nullptr;
    why_.compare_exchange_strong(none, why, std::memory_order_acq_rel);
}

void Outstanding::check(const char* what) const {
    const char* const why = why_ended();
    if (why == nullptr) return;
    throw std::runtime_error(std::string("fabricshm: cannot ") + what + ": " + why);
}

}  // namespace fabricshm::torch_backend
