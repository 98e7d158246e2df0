// AttachServer: when it has to act next, and what sessions hear of their quotas.
// docs/devices.md.

#include <algorithm>

#include "fabricd/server/attach_server.hpp"

namespace fabricd {

namespace {

// While a quota shrinks, its sessions see this often how much is still used.
constexpr Duration kQuotasAgain = std::chrono::milliseconds(100);

}  // namespace

// Announces limits that changed; while one shrinks also how far it is.
void AttachServer::tell_quotas(TimePoint now) {
    const bool changed = registry_.quotas().changes() != quotas_told_;
    const bool again = registry_.quotas().shrink() && now >= quotas_due_;
    if (!changed && !again) return;
    pages_.tell_quotas(
        [&](const PageOwner& owner) { return registry_.quotas_of(owner.device, owner.uid, now); });
    quotas_told_ = registry_.quotas().changes();
    quotas_due_ = fabricshm::deadline_after(now, kQuotasAgain);
}

TimePoint AttachServer::next_deadline() const {
    TimePoint next = registry_.next_deadline();
    if (registry_.quotas().shrink()) next = std::min(next, quotas_due_);
    next = std::min(next, accept_again_);
    next = std::min(next, strangers_.next_deadline());
    if (!parked_.empty()) next = std::min(next, parked_until_);
    if (!stalled_.empty()) next = std::min(next, stalled_.begin()->first);
    if (greeting_.empty()) return next;
    return std::min(next, connections_.at(*greeting_.begin()).hello_until);
}

}  // namespace fabricd
