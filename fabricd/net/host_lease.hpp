// What a host itself knows of its lease: until when it may grant, and when it has to end what
// writes to memory that other hosts may be given. docs/hosts.md, "Leases and fences".

#pragma once

#include "fabricd/net/boot_clock.hpp"

namespace fabricd {

using fabricshm::Duration;

inline constexpr Duration kMinLeaseTtl = std::chrono::seconds(2);
inline constexpr Duration kMaxLeaseTtl = std::chrono::minutes(5);

/// So much before the end of the lease its host ends those sessions itself: for the signals to
/// arrive.
inline constexpr Duration kFenceMargin = std::chrono::milliseconds(500);

/// So much longer than a lease the others wait after it was deleted, before they act on it: their
/// clocks and the store's are not one clock.
inline constexpr Duration kLeaseGrace = std::chrono::seconds(1);

enum class LeaseStanding {
    kNone,   // not in the cluster
    kHeld,   // may grant
    kStale,  // 2/3 of the lease passed without an answer: nothing new is granted, what runs goes on
    kEnded,  // for good. The host comes back under another incarnation only
};

/// Plain data, without a clock. For one thread.
/// Times are those at which a request was sent, and not when its answer came: the store counts from
/// some moment in between, so that this host's lease ends before the store's does, however long the
/// answer took.
struct HostLease {
    Duration ttl{};   // as the store granted it
    BootTime sent{};  // of the last request that was answered
    bool is_taken = false;
    bool has_ended = false;
};

/// The lease that a request of `sent` was granted.
HostLease take_lease(Duration ttl, BootTime sent) noexcept;

BootTime grants_until(const HostLease& lease) noexcept;  // sent + 2/3 of ttl
BootTime fence_at(const HostLease& lease) noexcept;      // sent + ttl - kFenceMargin

LeaseStanding standing_of(const HostLease& lease, BootTime now) noexcept;

/// An answer to a request of `sent` came at `now`. False, and nothing is renewed, when the lease
/// has ended meanwhile: sessions were ended because of it, or are about to be. An answer that
/// others overtook changes nothing.
bool renew(HostLease& lease, Duration ttl, BootTime sent, BootTime now) noexcept;

/// Whether the sessions on shared memory have to be ended now: true once for each lease.
bool must_fence(HostLease& lease, BootTime now) noexcept;

/// The store says that the lease is gone: others may have begun to count. As must_fence().
bool lose(HostLease& lease) noexcept;

/// How long the others wait between the deletion of a host's record and calling it lost.
constexpr Duration grace_after_deletion(Duration ttl) noexcept {
    return ttl + kLeaseGrace;
}

}  // namespace fabricd
