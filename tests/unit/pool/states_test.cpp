#include "fabricd/pool/states.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace fabricd;

TEST_SUITE("pool.states") {
    TEST_CASE("each state has the name that scripts know it by, and is found by that name") {
        CHECK(name_of(RegionState::kLive) == "live");
        CHECK(name_of(RegionState::kQuarantined) == "quarantined");
        CHECK(name_of(RegionState::kBad) == "bad");
        CHECK(name_of(GroupState::kForming) == "forming");
        CHECK(name_of(GroupState::kComplete) == "complete");
        CHECK(name_of(GroupState::kBroken) == "broken");
        CHECK(name_of(ShardState::kHere) == "here");
        CHECK(name_of(ShardState::kFixed) == "fixed");
        CHECK(name_of(ShardState::kMoving) == "moving");
        CHECK(name_of(ShardState::kDraining) == "draining");
        CHECK(name_of(ShardState::kRetired) == "retired");
        CHECK(state_named<RegionState>("bad") == RegionState::kBad);
        CHECK(state_named<GroupState>("forming") == GroupState::kForming);
        CHECK(state_named<ShardState>("retired") == ShardState::kRetired);
    }

    TEST_CASE("a name that this program doesn't know is the unknown state") {
        CHECK(state_named<ShardState>("compressed") == ShardState::kUnknown);
        CHECK(state_named<RegionState>("") == RegionState::kUnknown);
        CHECK(state_named<GroupState>("Forming") == GroupState::kUnknown);
        CHECK(name_of(GroupState::kUnknown) == "unknown");
        CHECK(name_of(static_cast<RegionState>(200)) == "unknown");
    }

    TEST_CASE("a shard has two copies while it moves and until the old one is read by no process") {
        CHECK(is_moving(ShardState::kMoving));
        CHECK(is_moving(ShardState::kDraining));
        CHECK(!is_moving(ShardState::kHere));
        CHECK(!is_moving(ShardState::kRetired));
        CHECK(!is_moving(ShardState::kUnknown));
    }
}
