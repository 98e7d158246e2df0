#include "fabricd/net/host_lease.hpp"

#include <doctest/doctest.h>

using namespace fabricd;
using namespace std::chrono_literals;

namespace {
constexpr BootTime kStart{1000s};
}

TEST_SUITE("net.host_lease") {
    TEST_CASE("a host without a lease may neither grant nor has anything to end") {
        HostLease lease;
        CHECK(standing_of(lease, kStart) == LeaseStanding::kNone);
        CHECK_FALSE(must_fence(lease, kStart + 1h));
        CHECK_FALSE(renew(lease, 6s, kStart, kStart));
    }

    TEST_CASE(
        "nothing is granted after two thirds, and half a second before the end sessions end") {
        HostLease lease = take_lease(6s, kStart);
        CHECK(standing_of(lease, kStart + 3999ms) == LeaseStanding::kHeld);
        CHECK(standing_of(lease, kStart + 4s) == LeaseStanding::kStale);
        CHECK(standing_of(lease, kStart + 5499ms) == LeaseStanding::kStale);
        CHECK_FALSE(must_fence(lease, kStart + 5499ms));
        CHECK(standing_of(lease, kStart + 5500ms) == LeaseStanding::kEnded);
        CHECK(must_fence(lease, kStart + 5500ms));
    }

    TEST_CASE("sessions are ended once for each lease") {
        HostLease lease = take_lease(6s, kStart);
        CHECK(must_fence(lease, kStart + 6s));
        CHECK_FALSE(must_fence(lease, kStart + 7s));
        CHECK_FALSE(lose(lease));
        lease = take_lease(6s, kStart + 8s);
        CHECK(lose(lease));
        CHECK_FALSE(must_fence(lease, kStart + 20s));
    }

    TEST_CASE("the lease counts from when the request was sent, not from when its answer came") {
        HostLease lease = take_lease(6s, kStart);
        REQUIRE(renew(lease, 6s, kStart + 1s, kStart + 4s));
        CHECK(grants_until(lease) == kStart + 5s);
        CHECK(fence_at(lease) == kStart + 6500ms);
    }

    TEST_CASE("an answer that others overtook does not shorten the lease") {
        HostLease lease = take_lease(6s, kStart);
        REQUIRE(renew(lease, 6s, kStart + 2s, kStart + 3s));
        REQUIRE(renew(lease, 6s, kStart + 1s, kStart + 4s));
        CHECK(lease.sent == kStart + 2s);
    }

    TEST_CASE("an answer that comes after the end renews nothing, noticed or not") {
        HostLease lease = take_lease(6s, kStart);
        CHECK_FALSE(renew(lease, 6s, kStart + 5s, kStart + 5500ms));
        CHECK(must_fence(lease, kStart + 5501ms));
        CHECK_FALSE(renew(lease, 6s, kStart + 5s, kStart + 5501ms));
        CHECK(standing_of(lease, kStart + 5501ms) == LeaseStanding::kEnded);
    }

    TEST_CASE("a lease that the store calls over has ended before its time") {
        HostLease lease = take_lease(6s, kStart);
        CHECK(lose(lease));
        CHECK(standing_of(lease, kStart + 1s) == LeaseStanding::kEnded);
        CHECK_FALSE(renew(lease, 6s, kStart + 1s, kStart + 1s));
    }

    TEST_CASE("what the store grants counts, also where it is less than before") {
        HostLease lease = take_lease(6s, kStart);
        REQUIRE(renew(lease, 3s, kStart + 1s, kStart + 1s));
        CHECK(fence_at(lease) == kStart + 3500ms);
    }

    TEST_CASE("others wait longer than the lease lasts") {
        CHECK(grace_after_deletion(5s) == 6s);
        CHECK(grace_after_deletion(kMinLeaseTtl) > kMinLeaseTtl);
    }
}
