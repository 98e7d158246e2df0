#include "fabricd/pool/cached_ranges.hpp"

#include <doctest/doctest.h>

#include <bitset>
#include <random>

using namespace fabricd;

TEST_SUITE("pool.cached_ranges") {
    TEST_CASE("what is taken is out, and what lies around it is not") {
        CachedRanges cached;
        CHECK_FALSE(cached.take(0, 4096));
        cached.add(0, 3 * 4096);
        CHECK(cached.take(4096, 4096));
        CHECK_FALSE(cached.take(4096, 4096));
        CHECK(cached.touches(0, 4096));
        CHECK(cached.touches(2 * 4096, 1));
        CHECK_FALSE(cached.touches(0, 0));
        CHECK_FALSE(cached.take(3 * 4096, 4096));
    }

    TEST_CASE("any ranges are what a list of bytes says") {
        constexpr std::size_t kEnd = 64;
        std::mt19937 random(13);
        CachedRanges cached;
        std::bitset<kEnd> bytes;
        for (int i = 0; i < 20000; ++i) {
            const std::size_t from = random() % kEnd;
            const std::size_t length = random() % (kEnd - from + 1) % 9;
            bool any = false;
            for (std::size_t at = from; at < from + length; ++at) any = any || bytes[at];
            REQUIRE(cached.touches(from, length) == any);
            const bool adds = random() % 2 == 0;
            if (adds) cached.add(from, length);
            if (!adds) REQUIRE(cached.take(from, length) == any);
            for (std::size_t at = from; at < from + length; ++at) bytes[at] = adds;
        }
    }
}
