#include "fabricd/pool/lease.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {
constexpr SessionId kAlice{1};
constexpr SessionId kBob{2};
}  // namespace

TEST_SUITE("pool.lease") {
    TEST_CASE("a released region id is used again with a higher epoch") {
        LeaseTable table(0);
        const auto first = table.grant(kAlice);
        CHECK(first.epoch == 1);
        REQUIRE(table.release(first.region));
        const auto second = table.grant(kBob);
        CHECK(second.region == first.region);
        CHECK(second.epoch > first.epoch);
        CHECK(table.find(second.region)->session == kBob);
    }

    TEST_CASE("ids in use are never given twice") {
        LeaseTable table;
        const auto first = table.grant(kAlice);
        const auto second = table.grant(kAlice);
        CHECK(first.region != second.region);
        CHECK(first.region != RegionId::kNone);
    }

    TEST_CASE("a quarantined region is kept from everybody until it is released") {
        LeaseTable table(0);
        const auto grant = table.grant(kAlice);
        REQUIRE(table.quarantine(grant.region));
        CHECK_FALSE(table.quarantine(grant.region));
        CHECK(table.grant(kBob).region != grant.region);
        CHECK(table.find(grant.region)->session == kAlice);
        CHECK(table.release(grant.region));
        CHECK(table.grant(kBob).region == grant.region);
    }

    TEST_CASE("released ids rest, and the one that rested longest is used first") {
        LeaseTable table(2);
        for (int i = 0; i < 3; ++i) table.grant(kAlice);
        table.release(RegionId{2});
        table.release(RegionId{1});
        CHECK(table.grant(kBob).region == RegionId{4});
        table.release(RegionId{3});
        CHECK(table.grant(kBob).region == RegionId{2});
        CHECK(table.grant(kBob).region == RegionId{5});
    }

    TEST_CASE("what was never granted cannot be released, quarantined or found") {
        LeaseTable table;
        CHECK_FALSE(table.release(RegionId{5}));
        CHECK_FALSE(table.quarantine(RegionId{5}));
        CHECK(table.find(RegionId{5}) == nullptr);
    }

    TEST_CASE("a restored free id keeps its epoch rising") {
        LeaseTable table(0);
        REQUIRE(table.restore(RegionId{1}, {SessionId::kNone, 41, LeaseState::kFree}));
        REQUIRE(table.restore(RegionId{2}, {kAlice, 3, LeaseState::kHeld}));
        CHECK_FALSE(table.restore(RegionId{2}, {kBob, 4, LeaseState::kHeld}));
        const auto grant = table.grant(kBob);
        CHECK(grant.region == RegionId{1});
        CHECK(grant.epoch == 42);
        CHECK(table.grant(kBob).region == RegionId{3});
    }
}
