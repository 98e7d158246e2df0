#include "libfabricshm/vgpu/share.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "libfabricshm/vgpu/throttle.hpp"

TEST_SUITE_BEGIN("vgpu.share");

using namespace fabricshm::cuda;
using fabricshm::ShareBucket;

namespace {

// A GPU in simulated time: launches of `work` units, each unit keeping it busy for `cost` ns, by a
// program that launches whenever it may. NVML reports whole per cent.
struct Gpu {
    ShareBucket bucket{};
    std::int64_t now = 1'000'000'000;
    std::int64_t busy_until = 0;
    double busy_in_window = 0.0;
    std::int64_t window_begin = 0;

    // Runs for `length` ns and returns the share that the program had of the time.
    double run(std::int64_t length, double wanted, std::uint64_t work, double cost) {
        const std::int64_t end = now + length;
        double total = 0.0;
        const std::int64_t begin = now;
        while (now < end) {
            if (take_window(bucket, now)) {
                const std::int64_t window = now - window_begin;
                const double share =
                    window_begin == 0 ? 0.0 : busy_in_window / static_cast<double>(window);
                const double told = std::round(std::min(1.0, share) * 100.0) / 100.0;
                if (window_begin != 0) end_window(bucket, wanted, told, window);
                busy_in_window = 0.0;
                window_begin = now;
            }
            // The queue of launches is short: a process ahead of the GPU waits.
            if (busy_until > now + 2'000'000) {
                now = busy_until - 2'000'000;
                continue;
            }
            if (const auto wait = try_spend(bucket, work, now)) {
                now += *wait;
                continue;
            }
            const double length_of_it = static_cast<double>(work) * cost;
            busy_until = std::max(busy_until, now) + static_cast<std::int64_t>(length_of_it);
            busy_in_window += length_of_it;
            total += length_of_it;
            now += 5'000;  // what a launch takes the program
        }
        return total / static_cast<double>(now - begin);
    }
};

constexpr std::int64_t kSecond = 1'000'000'000;

}  // namespace

TEST_CASE("a share is kept to within 3 per cent of itself, small or large") {
    for (const double wanted : {0.1, 0.25, 0.5, 0.75, 0.9}) {
        for (const std::uint64_t work : {10'000ULL, 50'000ULL, 1'000'000ULL}) {
            CAPTURE(wanted);
            CAPTURE(work);
            Gpu gpu;
            gpu.run(4 * kSecond, wanted, work, 1.0);
            const double share = gpu.run(20 * kSecond, wanted, work, 1.0);
            CHECK(std::abs(share - wanted) <= 0.03 * wanted);
        }
    }
}

TEST_CASE("when kernels become four times as expensive the share is found again") {
    Gpu gpu;
    gpu.run(4 * kSecond, 0.5, 50'000, 1.0);
    gpu.run(3 * kSecond, 0.5, 50'000, 4.0);
    CHECK(std::abs(gpu.run(10 * kSecond, 0.5, 50'000, 4.0) - 0.5) <= 0.015);
    gpu.run(5 * kSecond, 0.5, 50'000, 1.0);
    CHECK(std::abs(gpu.run(10 * kSecond, 0.5, 50'000, 1.0) - 0.5) <= 0.015);
}

TEST_CASE("a share that is changed live is followed within two seconds") {
    Gpu gpu;
    gpu.run(5 * kSecond, 0.8, 50'000, 1.0);
    gpu.run(2 * kSecond, 0.2, 50'000, 1.0);
    CHECK(std::abs(gpu.run(10 * kSecond, 0.2, 50'000, 1.0) - 0.2) <= 0.006);
}

TEST_CASE("too much is cut in proportion, too little is raised a bit") {
    ShareWindow window;
    window.wanted = 0.5;
    window.held_up = true;
    window.busy = 0.6;
    CHECK(next_rate(1200, window) == 1000);
    window.busy = 1.0;
    CHECK(next_rate(1200, window) == 600);
    window.busy = 0.4;
    CHECK(next_rate(1000, window) == 1100);
    window.busy = 0.0;
    CHECK(next_rate(1000, window) == 1500);
    window.busy = 0.5;
    CHECK(next_rate(1000, window) == 1010);
}

TEST_CASE("a process with little to do keeps its rate") {
    ShareWindow window;
    window.wanted = 0.5;
    window.busy = 0.1;
    CHECK(next_rate(1000, window) == 1000);
}

TEST_CASE("the first rate comes from what was done before there was one") {
    ShareWindow window;
    window.wanted = 0.25;
    window.busy = 0.5;
    window.spent_per_ms = 4000;
    CHECK(next_rate(0, window) == 2000);
    window.busy = 0.0;
    CHECK(next_rate(0, window) == 0);
}

TEST_CASE("no measurement and no word in the ledger makes a rate that is none") {
    ShareWindow window;
    window.wanted = 0.5;
    for (const double busy : {std::numeric_limits<double>::quiet_NaN(),
                              std::numeric_limits<double>::infinity(), -1.0}) {
        window.busy = busy;
        CHECK(next_rate(1000, window) == 1000);
    }
    ShareBucket bucket{};
    for (fabricshm::Word* word :
         {&bucket.rate, &bucket.tokens, &bucket.refilled_ns, &bucket.window_ns, &bucket.spent}) {
        *word = ~std::uint64_t{0};
    }
    for (int i = 1; i < 100; ++i) {
        const auto wait = try_spend(bucket, 1000, i * kSecond);
        if (wait) CHECK(*wait <= 10'000'000);
        if (take_window(bucket, i * kSecond)) end_window(bucket, 0.5, 0.7, kWindowNs);
    }
    CHECK(bucket.rate.load() >= 1);
    CHECK(bucket.rate.load() <= 1'000'000'000'000'000);
}

TEST_CASE("a bucket whose words were corrupt fills again") {
    for (const std::uint64_t corrupt : {std::uint64_t{1} << 62, std::uint64_t{1} << 63}) {
        CAPTURE(corrupt);
        ShareBucket bucket{};
        bucket.rate = 1000;
        bucket.refilled_ns = corrupt;
        CHECK(try_spend(bucket, 1, kSecond));  // no token yet
        CHECK(!try_spend(bucket, 1, kSecond + 10'000'000));
        bucket.tokens = ~std::uint64_t{0} >> 1;
        CHECK(!try_spend(bucket, 1, kSecond + 20'000'000));
        CHECK(bucket.tokens.load() <= 20'000);
    }
}

TEST_CASE("a launch that the driver refused costs nothing") {
    ShareBucket bucket{};
    bucket.rate = 1000;
    bucket.refilled_ns = kSecond;
    bucket.tokens = 10;
    REQUIRE(!try_spend(bucket, 1'000'000, kSecond));
    unspend(bucket, 1'000'000);
    CHECK(bucket.tokens.load() == 10);
    CHECK(bucket.spent.load() == 0);
    // A window that ended meanwhile has counted it already.
    REQUIRE(!try_spend(bucket, 1'000'000, kSecond));
    end_window(bucket, 0.5, 0.5, kWindowNs);
    unspend(bucket, 1'000'000);
    CHECK(bucket.spent.load() == 0);
}

TEST_CASE("the work of a launch is its threads, and never so much that it turns into credit") {
    CHECK(work_of({2, 3, 4}, {5, 6, 7}) == 2 * 3 * 4 * 5 * 6 * 7);
    CHECK(work_of({0, 1, 1}, {1, 1, 1}) == 1);
    CHECK(work_of({0x7fffffff, 65535, 65535}, {1024, 1, 1}) == kMaxWork);
    CHECK(work_of({0x80000000, 0x80000000, 4}, {1, 1, 1}) == kMaxWork);
    CHECK(work_of({~0U, ~0U, ~0U}, {~0U, ~0U, ~0U}) == kMaxWork);
}

TEST_CASE("a window that began while nothing was held back does not delay the next one") {
    ShareBucket bucket{};
    CHECK(take_window(bucket, kSecond, kFreeWindowNs));
    CHECK(!take_window(bucket, kSecond + kWindowNs, kFreeWindowNs));
    CHECK(take_window(bucket, kSecond + kWindowNs));
}

TEST_CASE("one caller only ends a window") {
    ShareBucket bucket{};
    CHECK(take_window(bucket, kSecond));
    CHECK(!take_window(bucket, kSecond));
    CHECK(!take_window(bucket, kSecond + kWindowNs - 1));
    CHECK(take_window(bucket, kSecond + kWindowNs));
}

TEST_SUITE_END();
