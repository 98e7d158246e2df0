#include "libfabricshm/client/shard_meters.hpp"

#include <doctest/doctest.h>

using namespace fabricshm;

TEST_SUITE("client.shard_meters") {
    TEST_CASE("the shards that are read most are reported, the busiest first") {
        ShardMeters meters;
        for (std::uint64_t shard = 1; shard <= 20; ++shard) {
            meters.add(7, shard)->count(shard * 10);
        }
        ShardReads told[kShardsTold];
        meters.tell(told);
        for (std::uint64_t i = 0; i < kShardsTold; ++i) {
            CHECK(told[i].arena == 7);
            CHECK(told[i].shard == 20 - i);
            CHECK(told[i].reads == 1);
            CHECK(told[i].bytes == (20 - i) * 10);
        }
    }

    TEST_CASE("what is read now passes what was read once, and counts go on rising") {
        ShardMeters meters;
        const auto old = meters.add(1, 1);
        const auto hot = meters.add(1, 2);
        old->count(1000);
        ShardReads told[kShardsTold];
        for (int i = 0; i < 20; ++i) {
            hot->count(150);
            meters.tell(told);
        }
        CHECK(told[0].shard == 2);
        CHECK(told[0].reads == 20);
        CHECK(told[0].bytes == 3000);
        CHECK(told[1].shard == 1);
        CHECK(told[1].bytes == 1000);
        CHECK(told[2].shard == 0);
    }

    TEST_CASE(
        "two handles of one shard count together, and a closed one is remembered while reported") {
        ShardMeters meters;
        meters.add(1, 1)->count(5);
        meters.add(1, 1)->count(5);
        ShardReads told[kShardsTold];
        meters.tell(told);
        CHECK(told[0].reads == 2);
        meters.add(1, 1)->count(5);
        meters.tell(told);
        CHECK(told[0].bytes == 15);
        CHECK(told[1].shard == 0);
    }

    TEST_CASE("a session that makes and frees shards all day remembers those that it reports") {
        ShardMeters meters;
        ShardReads told[kShardsTold];
        const auto open = meters.add(9, 9);
        for (std::uint64_t shard = 1; shard <= 1000; ++shard) {
            meters.add(1, shard)->count(10);
            meters.tell(told);
        }
        CHECK(meters.size() == kShardsTold + 1);  // the open one is kept, read or not
    }
}
