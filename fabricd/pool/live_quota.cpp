#include "fabricd/pool/live_quota.hpp"

#include <algorithm>

namespace fabricd {

void LiveQuota::set(Bytes wanted, Bytes used, TimePoint now, Duration grace) noexcept {
    target_.reset();
    if (wanted >= limit_ || used <= wanted) {
        limit_ = wanted;
        return;
    }
    target_ = wanted;
    grace_ = grace;
    deadline_ = fabricshm::deadline_after(now, grace);
}

bool LiveQuota::settle(Bytes used, TimePoint now) noexcept {
    if (!target_) return false;
    const bool fits = used <= *target_;
    if (!fits && now < deadline_) return false;
    // More than the limit can be used after a restart with a lower one; then it stays.
    limit_ = std::min(limit_, std::max(*target_, used));
    target_.reset();
    return true;
}

bool LiveQuota::admits(Bytes used, Bytes bytes) const noexcept {
    // Subtracting: the sum could wrap around.
    const Bytes most = target();
    return used <= most && bytes <= most - used;
}

QuotaState LiveQuota::state(Bytes used, TimePoint now) const {
    QuotaState state{limit_, target(), used, 0};
    if (!target_ || now >= deadline_) return state;
    state.left_ms = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - now).count();
    return state;
}

}  // namespace fabricd
