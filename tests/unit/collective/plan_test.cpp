#include "libfabricshm/collective/plan.hpp"

#include <doctest/doctest.h>

#include "libfabricshm/shm/group_block.hpp"

using namespace fabricshm;

namespace {

PlanInput allreduce_of(Bytes bytes) {
    PlanInput input;
    input.kind = Kind::kAllreduce;
    input.world = 4;
    input.part_bytes = bytes;
    input.total_bytes = bytes;
    return input;
}

}  // namespace

TEST_SUITE("collective.plan") {
    TEST_CASE("small goes by posts, large by arrival, and by slots what is to go flat") {
        const Tuning tuning;
        CHECK(choose_route(allreduce_of(8), tuning) == Route::kTiny);
        CHECK(choose_route(allreduce_of(kTinyBytes), tuning) == Route::kTiny);
        CHECK(choose_route(allreduce_of(tuning.max_flat), tuning) == Route::kTiny);
        PlanInput flat = allreduce_of(kTinyBytes + 1);
        flat.algorithm = Algorithm::kFlat;
        CHECK(choose_route(flat, tuning) == Route::kSlots);
        CHECK(choose_route(allreduce_of(tuning.max_flat + 1), tuning) == Route::kArrive);
        PlanInput rooted = allreduce_of(tuning.max_ahead);
        rooted.kind = Kind::kBroadcast;
        CHECK(choose_route(rooted, tuning) == Route::kTiny);
        rooted.algorithm = Algorithm::kFlat;
        CHECK(choose_route(rooted, tuning) == Route::kSlots);
        rooted = allreduce_of(tuning.max_ahead + 1);
        rooted.kind = Kind::kBroadcast;
        CHECK(choose_route(rooted, tuning) == Route::kArrive);
    }

    TEST_CASE("many ranks go along the tree with what is small, and arrive with the rest") {
        Tuning tuning;
        PlanInput many = allreduce_of(8);
        for (const int world : {8, 64, 256}) {
            CAPTURE(world);
            many.world = world;
            many.part_bytes = many.total_bytes = tree_bytes_for(world);
            CHECK(choose_route(many, tuning) == Route::kTree);
            many.part_bytes = many.total_bytes = tree_bytes_for(world) + 8;
            CHECK(choose_route(many, tuning) == Route::kArrive);
        }
        many.part_bytes = many.total_bytes = kKiB;
        CHECK(choose_arrived(many, true, tuning) == Algorithm::kDirect);
        CHECK(choose_arrived(many, false, tuning) == Algorithm::kStaged);
        many.part_bytes = many.total_bytes = 8;
        tuning.max_tree = 1024;
        CHECK(choose_route(many, tuning) == Route::kArrive);
        many.kind = Kind::kBarrier;
        CHECK(choose_route(many, tuning) == Route::kTree);
        many.kind = Kind::kBroadcast;
        CHECK(choose_route(many, tuning) == Route::kTiny);
        many.kind = Kind::kBarrier;
        tuning.tree_world = Tuning::kNoTree;
        CHECK(choose_route(many, tuning) == Route::kTiny);
    }

    TEST_CASE("an all_gather goes along the tree while all parts together are small") {
        PlanInput gather = allreduce_of(8);
        gather.kind = Kind::kAllGather;
        gather.world = 64;
        CHECK(choose_route(gather, {}) == Route::kTree);
        gather.part_bytes = gather.total_bytes = 24;
        CHECK(choose_route(gather, {}) == Route::kTiny);
    }

    TEST_CASE("trigger sync and forced algorithms go through the arrival at any size") {
        PlanInput input = allreduce_of(8);
        input.trigger = Trigger::kSync;
        CHECK(choose_route(input, {}) == Route::kArrive);
        input = allreduce_of(8);
        input.algorithm = Algorithm::kRing;
        CHECK(choose_route(input, {}) == Route::kArrive);
        CHECK(choose_arrived(input, true, {}) == Algorithm::kRing);
    }

    TEST_CASE("buffers outside the arena never go direct") {
        for (const Bytes bytes : {Bytes{1}, 100 * kKiB, kGiB}) {
            CHECK(choose_arrived(allreduce_of(bytes), true, {}) == Algorithm::kDirect);
            CHECK(choose_arrived(allreduce_of(bytes), false, {}) != Algorithm::kDirect);
        }
    }

    TEST_CASE("a forced algorithm that a kind does not have falls back to the table") {
        PlanInput input = allreduce_of(kMiB);
        input.kind = Kind::kAllGather;
        input.algorithm = Algorithm::kRing;
        CHECK(choose_arrived(input, true, {}) == Algorithm::kDirect);
    }

    TEST_CASE("pieces cover the part and fit the slot") {
        for (const Bytes bytes : {Bytes{0}, Bytes{1}, Bytes{64}, Bytes{100'000}, 5 * kMiB}) {
            for (const int sub_parts : {1, 3, 256}) {
                const Pieces pieces = cut_pieces(bytes, sub_parts, 64 * kKiB, 256 * kKiB);
                CHECK(pieces.count >= 1);
                CHECK(pieces.stride % kCacheLine == 0);
                CHECK(pieces.stride * static_cast<Bytes>(sub_parts) <= 64 * kKiB);
                CHECK(pieces.stride * pieces.count >= bytes);
            }
        }
    }

    TEST_CASE("chunks of a staged operation fit twice into a slot and are about equal") {
        for (const Bytes bytes :
             {Bytes{0}, Bytes{1}, Bytes{64}, 256 * kKiB + 4, 300 * kKiB, 5 * kMiB}) {
            for (const Bytes piece : {4 * kKiB, 256 * kKiB, 64 * kMiB}) {
                const Pieces chunks = cut_staged(bytes, 512 * kKiB, piece);
                CHECK(chunks.count >= 1);
                CHECK(chunks.stride % kCacheLine == 0);
                CHECK(chunks.stride <= 2 * piece);
                CHECK(chunks.stride * kStagedPerSlot <= 512 * kKiB);
                CHECK(chunks.stride * chunks.count >= bytes);
                // The last one is not empty, and shorter by a line for each of the others at most.
                const Bytes before = chunks.stride * (chunks.count - 1);
                CHECK((before < bytes || bytes == 0));
                CHECK(chunks.stride * chunks.count - bytes <= chunks.count * kCacheLine);
            }
        }
    }

    TEST_CASE("shares cover the range without overlap") {
        for (const Bytes bytes :
             {Bytes{0}, Bytes{1}, Bytes{63}, Bytes{64}, Bytes{1000}, kMiB + 5}) {
            for (const int world : {1, 2, 3, 7, 64}) {
                Bytes end = 0;
                for (int rank = 0; rank < world; ++rank) {
                    const Range range = share_of(bytes, rank, world);
                    CHECK(range.begin == end);
                    CHECK(range.end >= range.begin);
                    end = range.end;
                }
                CHECK(end == bytes);
            }
        }
    }
}
