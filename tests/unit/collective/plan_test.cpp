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
    TEST_CASE("small goes by lines, medium by slots, large by arrival") {
        const Tuning tuning;
        CHECK(choose_route(allreduce_of(8), tuning) == Route::kTiny);
        CHECK(choose_route(allreduce_of(kTinyBytes), tuning) == Route::kTiny);
        CHECK(choose_route(allreduce_of(kTinyBytes + 1), tuning) == Route::kSlots);
        CHECK(choose_route(allreduce_of(tuning.flat_most + 1), tuning) == Route::kArrive);
        PlanInput rooted = allreduce_of(tuning.ahead_most);
        rooted.kind = Kind::kBroadcast;
        CHECK(choose_route(rooted, tuning) == Route::kTiny);
        rooted.algorithm = Algorithm::kFlat;
        CHECK(choose_route(rooted, tuning) == Route::kSlots);
        rooted = allreduce_of(tuning.ahead_most + 1);
        rooted.kind = Kind::kBroadcast;
        CHECK(choose_route(rooted, tuning) == Route::kArrive);
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
