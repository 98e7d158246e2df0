// A limit that changes while it is in use.

#include <doctest/doctest.h>

#include "fabricd/pool/live_quota.hpp"

using namespace fabricd;
using namespace std::chrono_literals;

namespace {
constexpr TimePoint kNow{1h};
}

TEST_SUITE("pool.live_quota") {
    TEST_CASE("it grows at once, and shrinks at once when what is used fits") {
        LiveQuota quota(100);
        quota.set(200, 90, kNow, 10s);
        CHECK(quota.limit() == 200);
        CHECK(quota.admits(90, 110));
        CHECK_FALSE(quota.admits(90, 111));
        quota.set(95, 90, kNow, 10s);
        CHECK(quota.limit() == 95);
        CHECK_FALSE(quota.shrinking());
        CHECK(quota.deadline() == TimePoint::max());
    }

    TEST_CASE("from the announcement on nothing is granted beyond the target") {
        LiveQuota quota(100);
        quota.set(50, 80, kNow, 10s);
        CHECK(quota.limit() == 100);
        CHECK(quota.target() == 50);
        CHECK_FALSE(quota.admits(80, 1));
        CHECK(quota.admits(40, 10));
        CHECK(quota.state(80, kNow + 4s).left_ms == 6000);
        CHECK_FALSE(quota.settle(80, kNow + 9s));
        CHECK(quota.settle(50, kNow + 9s));
        CHECK(quota.limit() == 50);
        CHECK_FALSE(quota.settle(50, kNow + 20s));
    }

    TEST_CASE("at the deadline it is cut to what is used, never below") {
        LiveQuota quota(100);
        quota.set(50, 80, kNow, 10s);
        CHECK(quota.settle(70, kNow + 10s));
        CHECK(quota.limit() == 70);
        CHECK_FALSE(quota.admits(70, 1));
        LiveQuota full(100);  // after a restart with a lower quota more may be used than there is
        full.set(50, 120, kNow, 0s);
        CHECK(full.settle(120, kNow));
        CHECK(full.limit() == 100);
        CHECK_FALSE(full.admits(120, 1));
    }

    TEST_CASE("a new order takes the place of one that is waited for") {
        LiveQuota quota(100);
        quota.set(50, 80, kNow, 10s);
        quota.set(100, 80, kNow + 1s, 10s);
        CHECK_FALSE(quota.shrinking());
        CHECK(quota.admits(80, 20));
    }
}
