#include "libfabricshm/shm/latency_rows.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <set>

using namespace fabricshm;

TEST_SUITE("shm.latency_rows") {
    TEST_CASE(
        "a time is in the first bucket whose end it does not exceed; ends double from 250 ns") {
        // By walking up the ends, as the histogram is defined.
        const auto walked = [](std::int64_t took_ns) {
            int bucket = 0;
            for (std::int64_t end = 250; bucket < 24 && took_ns > end; end *= 2) ++bucket;
            return bucket;
        };
        int wrong = 0;
        for (std::int64_t end = 250, i = 0; i < 26; end *= 2, ++i) {
            for (const std::int64_t took : {end - 1, end, end + 1, end + end / 3}) {
                wrong += latency_bucket(took) != walked(took);
            }
        }
        for (std::int64_t took = 0; took < 3000; ++took)
            wrong += latency_bucket(took) != walked(took);
        CHECK(wrong == 0);
        CHECK(latency_bucket(INT64_MAX) == 24);
        CHECK(latency_end_ns(23) == 2'097'152'000);
    }

    TEST_CASE("each kind and size class has a row of its own") {
        std::set<int> rows;
        for (int kind = 0; kind < kLatencyKinds; ++kind) {
            for (const std::uint64_t bytes : {0ULL, 1ULL << 10, 64ULL << 10, 4ULL << 20}) {
                rows.insert(latency_row(kind, bytes));
            }
        }
        CHECK(rows.size() == 64);
        CHECK(*rows.begin() == 0);
        CHECK(*rows.rbegin() == 63);
        CHECK(latency_size(1023) == 0);
        CHECK(latency_size((64 << 10) - 1) == 1);
        CHECK(latency_size((4 << 20) - 1) == 2);
        CHECK(latency_size(UINT64_MAX) == 3);
    }
}
