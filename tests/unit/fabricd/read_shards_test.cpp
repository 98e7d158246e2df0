#include "fabricd/service/read_shards.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {

/// A session reports these shards, each with so many bytes read so far.
Sample told(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& shards,
            const char* device = "near") {
    Sample sample;
    sample.sessions.resize(1);
    sample.sessions[0].session_id = 4;
    sample.sessions[0].device = device;
    for (const auto& [shard, bytes] : shards) {
        sample.sessions[0].shards.push_back({3, shard, bytes, bytes});
    }
    return sample;
}

std::vector<std::uint64_t> shown(const ReadShards& shards) {
    std::vector<std::uint64_t> ids;
    for (const ShardId& id : shards.ids()) ids.push_back(raw(id.header));
    return ids;
}

}  // namespace

TEST_SUITE("fabricd.read_shards") {
    TEST_CASE("what a session on a device reads is shown, and a while longer") {
        ReadShards shards(2);
        shards.look(told({{5, 1}, {8, 1}}));
        shards.look(told({{7, 1}}, ""));
        for (std::uint64_t bytes = 2; bytes <= 3; ++bytes) {
            shards.look(told({{8, bytes}}));
            CHECK(shown(shards) == std::vector<std::uint64_t>{5, 8});
        }
        shards.look(told({{8, 4}}));
        CHECK(shown(shards) == std::vector<std::uint64_t>{8});
        CHECK(shards.left_out() == 0);
    }

    TEST_CASE("what is open and not read is not shown for long, nor at all if it never was") {
        ReadShards shards(2);
        shards.look(told({{5, 9}, {6, 0}, {7, 1}}));
        CHECK(shown(shards) == std::vector<std::uint64_t>{5, 7});
        for (std::uint64_t bytes = 2; bytes < 6; ++bytes) {
            shards.look(told({{5, 9}, {6, 0}, {7, bytes}}));
        }
        CHECK(shown(shards) == std::vector<std::uint64_t>{7});
    }

    TEST_CASE("a shard whose counts come seldom is shown in between") {
        ReadShards shards(1, 10);
        for (std::uint64_t look = 0; look < 50; ++look) {
            shards.look(told({{5, 1 + look / 10}}));
            CHECK(shown(shards) == std::vector<std::uint64_t>{5});
        }
    }

    TEST_CASE(
        "a shard that moves is shown until it is there, though no session reads it any more") {
        ReadShards shards(1);
        Places places;
        places.shards.resize(2);
        for (ShardView& shard : places.shards) shard.arena_id = 3;
        places.shards[0].id = 5;
        places.shards[0].state = ShardState::kMoving;
        places.shards[1].id = 6;  // of another job: no session reads it
        places.shards[1].state = ShardState::kMoving;
        shards.look(told({{5, 1}}));
        for (int i = 0; i < 5; ++i) {
            shards.keep_moving(places);
            shards.look(told({}));
            CHECK(shown(shards) == std::vector<std::uint64_t>{5});
        }
        places.shards[0].state = ShardState::kHere;
        for (int i = 0; i < 2; ++i) {
            shards.keep_moving(places);
            shards.look(told({}));
        }
        CHECK(shown(shards).empty());
    }

    TEST_CASE("too many are cut to those that were read last, always the same, and counted") {
        ReadShards shards(10, 1, 3);
        shards.look(told({{9, 1}, {8, 1}}));
        for (std::uint64_t i = 1; i <= 3; ++i) {
            shards.look(told({{1, i}, {2, i}, {3, i}, {4, i}, {5, i}}));
            CHECK(shown(shards) == std::vector<std::uint64_t>{1, 2, 3});
            CHECK(shards.left_out() == (i == 1 ? 4 : 2));
        }
        shards.look(told({}));
        CHECK(shards.left_out() == 0);
    }

    TEST_CASE("a shard that is read gets the place of one that is only open") {
        ReadShards shards(10, 1, 2);
        for (std::uint64_t i = 1; i <= 4; ++i) {
            shards.look(told({{1, 1}, {2, 1}, {8, i}, {9, i}}));
        }
        CHECK(shown(shards) == std::vector<std::uint64_t>{8, 9});
    }
}
