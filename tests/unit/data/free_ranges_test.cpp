#include "fabricd/data/blocks/free_ranges.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

using namespace fabricd;
using End = FreeRanges::End;

TEST_SUITE("data.free_ranges") {
    TEST_CASE("the smallest hole that has room is taken, at the end that is asked for") {
        FreeRanges ranges(0, 100);
        REQUIRE(ranges.take_at(10, 10));  // holes: 0-10 and 20-100
        CHECK(ranges.take(5, 1, End::kLow) == 0);
        CHECK(ranges.take(50, 1, End::kHigh) == 50);
        CHECK(ranges.free() == 35);
        CHECK(ranges.largest() == 30);
        CHECK_FALSE(ranges.take(31, 1, End::kLow));
        CHECK(ranges.take(8, 8, End::kLow) == 24);
        ranges.give(24, 8);
        CHECK(ranges.free_in(4, 22) == 7);
        CHECK_FALSE(ranges.take_at(9, 2));
    }

    TEST_CASE("random takes and gives agree with a map of all numbers") {
        for (unsigned seed = 0; seed < 30; ++seed) {
            CAPTURE(seed);
            std::mt19937 random(seed);
            FreeRanges ranges(16, 272);
            std::vector<int> owner(300, 0);  // 0: free; outside: taken
            for (int at = 0; at < 300; ++at) owner[at] = at >= 16 && at < 272 ? 0 : -1;
            std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
            for (int turn = 0; turn < 600; ++turn) {
                if (random() % 3 != 0) {
                    const std::uint64_t count = 1 + random() % 40;
                    const std::uint64_t align = 1ULL << random() % 4;
                    const auto place =
                        ranges.take(count, align, random() % 2 == 0 ? End::kLow : End::kHigh);
                    if (!place) {
                        // Without an alignment a hole of that size would have been found.
                        CHECK((align > 1 || ranges.largest() < count));
                        continue;
                    }
                    CHECK(*place % align == 0);
                    for (std::uint64_t at = *place; at < *place + count; ++at) {
                        REQUIRE(owner[at] == 0);
                        owner[at] = 1;
                    }
                    taken.emplace_back(*place, count);
                } else if (!taken.empty()) {
                    const std::size_t which = random() % taken.size();
                    const auto [begin, count] = taken[which];
                    taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(which));
                    ranges.give(begin, count);
                    for (std::uint64_t at = begin; at < begin + count; ++at) owner[at] = 0;
                }
                std::uint64_t free = 0;
                for (const int one : owner) free += one == 0 ? 1 : 0;
                REQUIRE(ranges.free() == free);
                REQUIRE(ranges.free_in(0, 300) == free);
            }
        }
    }
}
