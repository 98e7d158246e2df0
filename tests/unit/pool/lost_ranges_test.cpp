#include "fabricd/pool/lost_ranges.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

using namespace fabricd;

TEST_SUITE("pool.lost_ranges") {
    TEST_CASE("ranges that touch are one") {
        LostRanges lost;
        lost.add(8192, 4096);
        lost.add(0, 4096);
        CHECK(lost.all().size() == 2);
        lost.add(4096, 4096);
        REQUIRE(lost.all().size() == 1);
        CHECK(lost.covers(0, 12288));
        CHECK_FALSE(lost.covers(0, 12289));
    }

    TEST_CASE("nothing is touched where there is nothing") {
        LostRanges lost;
        lost.add(4096, 4096);
        CHECK_FALSE(lost.touches(0, 0));
        CHECK_FALSE(lost.touches(4096, 0));
        CHECK(lost.touches(4096, 1));
    }

    TEST_CASE("what is intact is what a list of bytes says, for any ranges") {
        std::mt19937 random(7);
        constexpr std::size_t kUnits = 64;
        LostRanges lost;
        std::vector<bool> bytes(kUnits, false);
        for (int step = 0; step < 200; ++step) {
            const std::size_t from = random() % kUnits;
            const std::size_t length = 1 + random() % std::min<std::size_t>(5, kUnits - from);
            if (step % 10 == 0) {
                lost.add(from, length);
                for (std::size_t i = from; i < from + length; ++i) bytes[i] = true;
            }
            std::vector<bool> said(kUnits, true);
            for (const auto& [offset, count] : lost.intact(from, length)) {
                for (std::size_t i = offset; i < offset + count; ++i) said[i] = false;
            }
            bool any = false;
            for (std::size_t i = from; i < from + length; ++i) {
                REQUIRE(said[i] == bytes[i]);
                any = any || bytes[i];
            }
            REQUIRE(lost.touches(from, length) == any);
        }
    }
}
