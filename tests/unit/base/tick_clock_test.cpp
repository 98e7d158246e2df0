#include "libfabricshm/base/tick_clock.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

using namespace fabricshm;

namespace {

constexpr std::int64_t kMs = 1'000'000;

}  // namespace

TEST_SUITE("base.tick_clock") {
    TEST_CASE("a rate is what passed on the clock for what the counter counted") {
        // 3 GHz, over 20 ms.
        const TickRate rate = rate_between({5 * kMs, 1'000}, {25 * kMs, 60'001'000}, true);
        CHECK(rate.base_ns == 25 * kMs);
        CHECK(rate.base_ticks == 60'001'000);
        // 2^32 ticks of a third of a nanosecond.
        CHECK(rate.scale == 1'431'655'765);
    }

    TEST_CASE("without a counter to rely on there is no scale") {
        const TickMoment first{5 * kMs, 1'000};
        CHECK(rate_between(first, {25 * kMs, 60'001'000}, false).scale == 0);
        // Too close to each other, back, or standing still.
        CHECK(rate_between(first, {14 * kMs, 60'001'000}, true).scale == 0);
        CHECK(rate_between(first, {25 * kMs, 999}, true).scale == 0);
        CHECK(rate_between(first, {25 * kMs, 1'000}, true).scale == 0);
        // Slower than 1 Hz.
        CHECK(rate_between({0, 0}, {2'000'000 * kMs, 1}, true).scale == 0);
    }

    TEST_CASE("a clock without a scale is the monotonic clock") {
        TickClock clock;
        const std::int64_t before = monotonic_clock_ns();
        const std::int64_t now = clock.now_ns();
        CHECK(now >= before);
        CHECK(now <= monotonic_clock_ns());
    }

    TEST_CASE("a clock counts from its base, forwards and back") {
        if (read_ticks() == 0) return;
        TickClock clock;
        // One tick is a quarter of a nanosecond: bounds from the counter itself.
        const std::uint64_t base = read_ticks() - 4'000'000;
        clock.set({7 * kMs, base, std::uint64_t{1} << 30});
        const std::uint64_t before = read_ticks();
        const std::int64_t now = clock.now_ns();
        const std::uint64_t after = read_ticks();
        CHECK(now >= 7 * kMs + static_cast<std::int64_t>((before - base) / 4) - 1);
        CHECK(now <= 7 * kMs + static_cast<std::int64_t>((after - base) / 4) + 1);
        // A base that is still to come, as another processor's counter may say.
        clock.set({7 * kMs, read_ticks() + (std::uint64_t{1} << 42), std::uint64_t{1} << 30});
        CHECK(clock.now_ns() < 7 * kMs);
    }

    TEST_CASE("a moment has the clock and the counter of about the same time") {
        const std::int64_t before = monotonic_clock_ns();
        const TickMoment moment = tick_moment();
        CHECK(moment.ns >= before);
        CHECK(moment.ns <= monotonic_clock_ns());
        CHECK(moment.ticks <= read_ticks());
    }
}
