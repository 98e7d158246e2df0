#include "fabricd/data/plan/prefetcher.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include "fabricd/data/plan/sample_order.hpp"

using namespace fabricd;

namespace {

Bytes ten(std::uint32_t) {
    return 10;
}

// All of it set aside.
PassingRoom aside(Bytes bytes) {
    return {bytes, bytes, 0};
}

bool none_kept(std::uint32_t) {
    return false;
}

}  // namespace

TEST_SUITE("data.prefetcher") {
    TEST_CASE("samples are asked for in the order of their use, as many bytes ahead as may pass") {
        Prefetcher prefetcher({3, 1, 4, 0, 2});
        CHECK(prefetcher.next(aside(30), ten, none_kept) == 3U);
        CHECK(prefetcher.next(aside(30), ten, none_kept) == 1U);
        CHECK(prefetcher.next(aside(30), ten, none_kept) == 4U);
        CHECK(!prefetcher.next(aside(30), ten, none_kept));
        CHECK(prefetcher.passing() == 30);
        prefetcher.finish(3);
        CHECK(prefetcher.next(aside(30), ten, none_kept) == 0U);
        prefetcher.keep(1);  // takes no room of those that pass
        CHECK(prefetcher.next(aside(30), ten, none_kept) == 2U);
        CHECK(prefetcher.is_at_end());
        CHECK(!prefetcher.next(aside(30), ten, none_kept));
        for (const std::uint32_t sample : {4U, 0U, 2U}) prefetcher.finish(sample);
        CHECK(prefetcher.passing() == 0);
    }

    TEST_CASE("what takes a kept sample's place needs no room that is set aside") {
        Prefetcher prefetcher({3, 1, 4, 0, 2});
        CHECK(prefetcher.next({40, 10, 0}, ten, none_kept) == 3U);
        CHECK(!prefetcher.next({40, 10, 9}, ten, none_kept));
        CHECK(prefetcher.next({40, 10, 10}, ten, none_kept) == 1U);
        prefetcher.take_place(1);
        prefetcher.take_place(1);
        CHECK(prefetcher.passing() == 20);
        CHECK(prefetcher.passing_aside() == 10);
        prefetcher.finish(3);
        CHECK(prefetcher.next({40, 10, 0}, ten, none_kept) == 4U);
        CHECK(prefetcher.next({40, 10, 30}, ten, none_kept) == 0U);
        prefetcher.take_place(0);
        // What passes has an end, whatever could go for it.
        CHECK(!prefetcher.next({30, 10, 100}, ten, none_kept));
        prefetcher.finish(1);
        CHECK(prefetcher.passing_aside() == 10);
        CHECK(prefetcher.next({30, 10, 100}, ten, none_kept) == 2U);
    }

    TEST_CASE("a sample that is larger than what may pass is asked for alone") {
        Prefetcher prefetcher({0, 1});
        CHECK(prefetcher.next(aside(1), ten, none_kept) == 0U);
        CHECK(!prefetcher.next(aside(1), ten, none_kept));
        prefetcher.finish(0);
        CHECK(prefetcher.next(aside(0), ten, none_kept) == 1U);
    }

    TEST_CASE("what is kept, or was read before it could be asked for, is not asked for") {
        Prefetcher prefetcher({0, 1, 2, 3});
        prefetcher.finish(2);
        const auto is_kept = [](std::uint32_t sample) { return sample == 1; };
        CHECK(prefetcher.next(aside(100), ten, is_kept) == 0U);
        CHECK(prefetcher.next(aside(100), ten, is_kept) == 3U);
        CHECK(!prefetcher.next(aside(100), ten, is_kept));
    }

    TEST_CASE("a sample that is drawn twice in an epoch is asked for once while it is there") {
        Prefetcher prefetcher({5, 6, 5});
        CHECK(prefetcher.next(aside(100), ten, none_kept) == 5U);
        CHECK(prefetcher.next(aside(100), ten, none_kept) == 6U);
        CHECK(!prefetcher.next(aside(100), ten, none_kept));
        Prefetcher small({5, 6, 5});
        CHECK(small.next(aside(10), ten, none_kept) == 5U);
        small.finish(5);
        CHECK(small.next(aside(10), ten, none_kept) == 6U);
        small.finish(6);
        CHECK(small.next(aside(10), ten, none_kept) == 5U);
    }

    // Readers that are some places apart, as the workers of a loader are; by a model apart.
    TEST_CASE("in any order of reads each sample is asked for once, or was read without") {
        std::mt19937 random(1);
        for (int turn = 0; turn < 200; ++turn) {
            CAPTURE(turn);
            const std::uint32_t samples = 1 + random() % 60;
            const auto order = sample_order({samples, random(), true});
            const Bytes ahead = 10 * (1 + random() % 8);
            std::set<std::uint32_t> kept;
            for (std::uint32_t i = 0; i < samples; ++i) {
                if (random() % 3 == 0) kept.insert(i);
            }
            const auto is_kept = [&](std::uint32_t sample) { return kept.count(sample) != 0; };
            Prefetcher prefetcher(order);
            std::set<std::uint32_t> asked;
            std::set<std::uint32_t> read;
            auto reads = order;
            for (std::size_t at = 0; at + 4 < reads.size(); at += 4) {
                std::shuffle(reads.begin() + static_cast<std::ptrdiff_t>(at),
                             reads.begin() + static_cast<std::ptrdiff_t>(at + 4), random);
            }
            for (const std::uint32_t sample : reads) {
                while (const auto next = prefetcher.next(aside(ahead), ten, is_kept)) {
                    CHECK(asked.insert(*next).second);
                    CHECK(kept.count(*next) == 0);
                    CHECK(read.count(*next) == 0);
                }
                Bytes passing = 0;
                for (const std::uint32_t one : asked) passing += read.count(one) == 0 ? 10 : 0;
                CHECK(passing == prefetcher.passing());
                CHECK(passing <= ahead);
                prefetcher.finish(sample);
                read.insert(sample);
            }
            CHECK(!prefetcher.next(aside(ahead), ten, is_kept));
            CHECK(prefetcher.passing() == 0);
        }
    }

    TEST_CASE("set aside is what is read until the first answer, of the cache a 128th at least") {
        const Bytes sample = 100'000;
        CHECK(bytes_aside({0, 0, 0, 0}, sample, 1280 * sample) == sample);
        // 50 ms at 1,000 samples a second, and one; however long a long queue makes them.
        CHECK(bytes_aside({9, 0, 1000, 0.05}, sample, 1280 * sample) == 51 * sample);
        CHECK(bytes_aside({0.05, 0, 1000, 0.05}, sample, 40 * sample) == 20 * sample);
        // 10 MB/s for a job that reads 100.
        CHECK(bytes_aside({9, 1e7, 1000, 0.05}, sample, 640 * sample) == 6 * sample);
        CHECK(bytes_aside({9, 1e7, 1000, 0.001}, sample, 1280 * sample) == 10 * sample);
    }

    TEST_CASE("what is fetched ahead covers the source's answers, and spares most of the cache") {
        const Bytes sample = 100'000;
        const Bytes cache = Bytes{1} << 34;
        CHECK(bytes_ahead({0, 0, 0}, sample, cache) == sample);
        // 50 ms at 1,000 samples a second, twice, and one.
        CHECK(bytes_ahead({0.05, 0, 1000}, sample, cache) == 101 * sample);
        CHECK(bytes_ahead({0.05, 2e8, 1000}, sample, cache) == 101 * sample);
        // 10 MB/s for a job that reads 100: it never rests.
        CHECK(bytes_ahead({0.05, 1e7, 1000}, sample, 1000 * sample) == 20 * sample);
        CHECK(bytes_ahead({0.05, 1e7, 1000}, sample, 100 * sample) == 11 * sample);
        CHECK(bytes_ahead({0.05, 0, 1000}, sample, 10 * sample) == 5 * sample);
        CHECK(bytes_ahead({1e9, 0, 1e9}, sample, 10) == sample);
    }
}
