#include "fabricd/net/host_lease.hpp"

namespace fabricd {

// A host stops granting before it ends sessions, or it could grant to what it has just ended.
static_assert(kMinLeaseTtl * 2 / 3 < kMinLeaseTtl - kFenceMargin);

HostLease take_lease(Duration ttl, BootTime sent) noexcept {
    return {ttl, sent, true, false};
}

BootTime grants_until(const HostLease& lease) noexcept {
    return lease.sent + lease.ttl * 2 / 3;
}

BootTime fence_at(const HostLease& lease) noexcept {
    return lease.sent + lease.ttl - kFenceMargin;
}

LeaseStanding standing_of(const HostLease& lease, BootTime now) noexcept {
    if (!lease.is_taken) return LeaseStanding::kNone;
    // Also before must_fence() has noticed: an end is an end at its time, and not when it is looked
    // at.
    if (lease.has_ended || now >= fence_at(lease)) return LeaseStanding::kEnded;
    return now < grants_until(lease) ? LeaseStanding::kHeld : LeaseStanding::kStale;
}

bool renew(HostLease& lease, Duration ttl, BootTime sent, BootTime now) noexcept {
    if (standing_of(lease, now) == LeaseStanding::kEnded || !lease.is_taken) return false;
    if (sent < lease.sent) return true;
    lease.sent = sent;
    // What the store grants counts, also where it is less than was asked for.
    lease.ttl = ttl;
    return true;
}

bool must_fence(HostLease& lease, BootTime now) noexcept {
    if (!lease.is_taken || lease.has_ended || now < fence_at(lease)) return false;
    lease.has_ended = true;
    return true;
}

bool lose(HostLease& lease) noexcept {
    const bool was_running = lease.is_taken && !lease.has_ended;
    lease.has_ended = true;
    return was_running;
}

}  // namespace fabricd
