#include "libfabricshm/shm/link_meter.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/support/link_fixture.hpp"

using namespace fabricshm;

namespace {

// 640 ns, 10 bytes a nanosecond: the numbers below are easy to follow.
LinkImage machine(std::uint32_t nodes = 1) {
    return shared_link(nodes, 640, 700, 0.1, 0.1);
}

// What one operation takes, from begin() to the end of finish().
template <typename Work>
std::uint64_t time_of(TestClock& clock, LinkMeter& meter, const Work& work) {
    clock.time += 1'000'000;  // the user computes
    const std::uint64_t start = clock.time;
    meter.begin();
    work();
    meter.finish();
    return clock.time - start;
}

}  // namespace

TEST_SUITE("shm.link_meter") {
    TEST_CASE("reading takes the latency and the bytes, writing likewise") {
        TestClock clock;
        TestPage page(machine());
        LinkMeter meter(page.data(), machine(), 0, 1, clock);
        CHECK(time_of(clock, meter, [&] { meter.read(10'000); }) == 640 + 1000);
        CHECK(time_of(clock, meter, [&] { meter.wrote(20'000); }) == 700 + 2000);
        CHECK(time_of(clock, meter, [] {}) == 0);
    }

    TEST_CASE("only what the real access did not take is waited for") {
        TestClock clock;
        TestPage page(machine());
        LinkMeter meter(page.data(), machine(), 0, 1, clock);
        const auto slow_read = [&] {
            meter.read(10'000);
            clock.time += 1500;
        };
        CHECK(time_of(clock, meter, slow_read) == 1640);
        const auto slow_write = [&] {
            clock.time += 1500;
            meter.wrote(10'000);
        };
        CHECK(time_of(clock, meter, slow_write) == 1700);
        const auto too_slow = [&] {
            meter.read(10'000);
            clock.time += 5000;
        };
        CHECK(time_of(clock, meter, too_slow) == 5000);
    }

    TEST_CASE("accesses that overlap pay one latency and all bytes") {
        TestClock clock;
        TestPage page(machine());
        LinkMeter meter(page.data(), machine(), 0, 1, clock);
        const auto three = [&] {
            for (int i = 0; i < 3; ++i) meter.read(10'000);
        };
        CHECK(time_of(clock, meter, three) == 640 + 3000);
        // The link carries both directions at once.
        const auto both = [&] {
            meter.read(10'000);
            meter.wrote(10'000);
        };
        CHECK(time_of(clock, meter, both) == 700 + 1000);
    }

    TEST_CASE("on a half-duplex link reads and writes take turns") {
        LinkImage links = machine();
        links.channels[0].half_duplex = 1;
        TestClock clock;
        TestPage page(links);
        LinkMeter meter(page.data(), links, 0, 1, clock);
        const auto both = [&] {
            meter.read(10'000);
            meter.wrote(10'000);
        };
        CHECK(time_of(clock, meter, both) == 700 + 2000);
    }

    TEST_CASE("bytes too few for a nanosecond are not lost") {
        TestClock clock;
        TestPage page(machine());
        LinkMeter meter(page.data(), machine(), 0, 1, clock);
        const auto many = [&] {
            for (int i = 0; i < 1000; ++i) meter.read(1);
        };
        const std::uint64_t taken = time_of(clock, meter, many);
        CHECK(taken >= 640 + 99);
        CHECK(taken <= 640 + 100);
    }

    TEST_CASE("ranks share the link, each byte is carried once") {
        TestClock clock;
        TestPage page(machine());
        LinkMeter one(page.data(), machine(), 0, 2, clock);
        LinkMeter two(page.data(), machine(), 1, 2, clock);
        const std::uint64_t start = clock.time;
        one.begin();
        two.begin();
        one.read(10'000);
        two.read(10'000);
        one.finish();
        CHECK(clock.time == start + 1640);
        two.finish();
        CHECK(clock.time == start + 2640);
    }

    TEST_CASE("jobs in arenas of their own share the pool's link, and one alone has all of it") {
        // In each turn both begin before either waits; 100 kB alone take 10 us.
        for (const bool is_shared : {true, false}) {
            CAPTURE(is_shared);
            TestClock clock;
            TestPage pool(machine());
            TestPage arenas[] = {TestPage(machine()), TestPage(machine())};
            LinkMeter one(arenas[0].data(), machine(), 0, 1, clock, pool.data(), 0);
            LinkMeter two(arenas[1].data(), machine(), 0, 1, clock, pool.data(), 1);
            constexpr std::uint64_t kTurns = 20;
            std::uint64_t taken = 0;
            for (std::uint64_t turn = 0; turn < kTurns; ++turn) {
                taken += time_of(clock, one, [&] {
                    one.read(100'000);
                    if (!is_shared) return;
                    two.begin();
                    two.read(100'000);
                    two.finish();
                });
            }
            // Half of the rate each, and together all of it.
            CHECK(taken == kTurns * ((is_shared ? 20'000 : 10'000) + 640));
        }
    }

    TEST_CASE("ranks of two arenas are counted apart where a link has a knee") {
        LinkImage links = machine();
        links.channels[0].knee_ranks = 1;
        links.channels[0].knee_loss_permille = 500;
        TestClock clock;
        TestPage pool(links);
        TestPage arenas[] = {TestPage(links), TestPage(links)};
        LinkMeter one(arenas[0].data(), links, 0, 1, clock, pool.data(), 0);
        LinkMeter two(arenas[1].data(), links, 0, 1, clock, pool.data(), 5);
        one.begin();
        one.read(10'000);
        two.begin();
        const std::uint64_t start = clock.time;
        two.read(10'000);
        two.finish();
        // After the first one's bytes, at half of the rate.
        CHECK(clock.time == start + 1000 + 2000 + 640);
    }

    TEST_CASE("a share of the accesses is late, by as much in every run of the same seed") {
        LinkImage links = machine();
        links.routes[0].tail_permille = 100;
        links.routes[0].tail_latency_ns = 1000;
        const auto run = [&](std::uint16_t seed, int rank) {
            links.seed = seed;
            TestClock clock;
            TestPage page(links);
            LinkMeter meter(page.data(), links, rank, 2, clock);
            std::vector<std::uint64_t> times;
            for (int i = 0; i < 1000; ++i) {
                times.push_back(time_of(clock, meter, [&] { meter.read(0); }));
            }
            return times;
        };
        const auto times = run(1, 0);
        int late = 0;
        std::uint64_t sum = 0;
        for (const std::uint64_t time : times) {
            CHECK(time >= 640);
            CHECK(time < 640 + 1000);
            late += time > 640 ? 1 : 0;
            sum += time - 640;
        }
        // Of 1000: 100 are meant, with a deviation of 10; half of the longest, with one of 29 ns.
        CHECK(late > 60);
        CHECK(late < 140);
        CHECK(sum / static_cast<std::uint64_t>(late) > 400);
        CHECK(sum / static_cast<std::uint64_t>(late) < 600);
        CHECK(run(1, 0) == times);
        CHECK(run(2, 0) != times);
        CHECK(run(1, 1) != times);
    }

    TEST_CASE("a poll takes the way there before it and the way back after it") {
        TestClock clock;
        TestPage page(machine());
        LinkMeter meter(page.data(), machine(), 0, 1, clock);
        const std::uint64_t start = clock.time;
        meter.begin();
        meter.look(0);
        CHECK(clock.time == start + 320);
        // The next one can begin when the answer is here: polling has the period of a read.
        meter.look(0);
        CHECK(clock.time == start + 640 + 320);
        // What is read because of what was seen begins then, too.
        meter.read(10'000);
        meter.finish();
        CHECK(clock.time == start + 1280 + 640 + 1000);
    }

    TEST_CASE("a signal waits for the bytes before it, or takes the way of its own store") {
        TestClock clock;
        TestPage page(machine());
        LinkMeter meter(page.data(), machine(), 0, 1, clock);
        std::uint64_t start = clock.time;
        meter.begin();
        meter.signal();
        CHECK(clock.time == start + 700);
        start = clock.time;
        meter.wrote(10'000);
        meter.signal();
        CHECK(clock.time == start + 1700);
        // Two words raised one after the other are under way together.
        start = clock.time;
        meter.signal();
        CHECK(clock.time == start);
        meter.look(0);
        start = clock.time + 320;
        meter.signal();
        CHECK(clock.time == start + 700);
    }

    TEST_CASE(
        "a wait that ends late is made up for in the next operation, if that follows at once") {
        TestClock clock;
        TestPage page(machine());
        LinkMeter meter(page.data(), machine(), 0, 1, clock);
        const auto operate = [&] {
            meter.begin();
            meter.read(10'000);
            meter.finish();
        };
        const std::uint64_t start = clock.time;
        clock.late = 400;
        for (int i = 0; i < 10; ++i) operate();
        CHECK(clock.time == start + 10 * 1640 + 400);
        clock.late = 0;
        CHECK(time_of(clock, meter, [&] { meter.read(10'000); }) == 1640);
    }

    TEST_CASE("beyond the knee each further rank costs its share of the bandwidth") {
        LinkImage links = machine();
        links.channels[0].knee_ranks = 2;
        links.channels[0].knee_loss_permille = 250;
        TestClock clock;
        TestPage page(links);
        std::vector<std::unique_ptr<LinkMeter>> ranks;
        for (int rank = 0; rank < 8; ++rank) {
            ranks.push_back(std::make_unique<LinkMeter>(page.data(), links, rank, 8, clock));
        }
        std::uint64_t carried = 0;
        std::vector<std::uint64_t> costs;
        for (auto& rank : ranks) {
            rank->begin();
            rank->read(10'000);
            const std::uint64_t until = page.page().live[0].read_until.load() - clock.time;
            costs.push_back(until - carried);
            carried = until;
        }
        // 1 and 2 ranks: all of it; then 75 %, 50 %, 25 %, and never below 10 %.
        CHECK(costs[0] == 1000);
        CHECK(costs[1] == 1000);
        CHECK(costs[2] == 1333);
        CHECK(costs[3] == 2000);
        CHECK(costs[4] == 4000);
        CHECK(costs[5] == 10'000);
        CHECK(costs[7] == 10'000);
        // Ranks that are done, or dead, no longer count.
        clock.time += 1'000'000;
        CHECK(time_of(clock, *ranks[0], [&] { ranks[0]->read(10'000); }) == 1640);
    }

    TEST_CASE("nodes have links of their own, and ranks are dealt to the nodes in blocks") {
        LinkImage links = machine(2);
        links.channel_count = 2;
        links.channels[1] = links.channels[0];
        links.routes[1].hops[0].channel = 1;
        TestClock clock;
        TestPage page(links);
        ::unsetenv("FABRIC_EMULATED_NODE");
        LinkMeter one(page.data(), links, 1, 4, clock);
        LinkMeter two(page.data(), links, 2, 4, clock);
        CHECK(one.node() == 0);
        CHECK(two.node() == 1);
        const std::uint64_t start = clock.time;
        one.read(10'000);
        two.read(10'000);
        one.finish();
        two.finish();
        CHECK(clock.time == start + 1640);
        ::setenv("FABRIC_EMULATED_NODE", "1", 1);
        CHECK(LinkMeter(page.data(), links, 0, 4, clock).node() == 1);
        ::setenv("FABRIC_EMULATED_NODE", "7", 1);
        CHECK(LinkMeter(page.data(), links, 0, 4, clock).node() == 0);
        ::unsetenv("FABRIC_EMULATED_NODE");
    }

    TEST_CASE("a scribbled page delays no rank for long") {
        LinkImage links = machine();
        links.channels[0].knee_ranks = 1;
        links.channels[0].knee_loss_permille = 1000;
        TestClock clock;
        TestPage page(links);
        LinkMeter meter(page.data(), links, 0, 1, clock);
        page.page().live[0].read_until.store(~std::uint64_t{0});
        for (auto& slot : page.page().slots) slot.store(~std::uint64_t{0});
        page.page().image.routes[0].read_latency_ns = 999'999'999;
        CHECK(time_of(clock, meter, [&] { meter.read(10'000); }) == 1640);
    }

    TEST_CASE("two threads charge a link at the same time and no byte is lost") {
        const LinkImage links = shared_link(1, 0, 0, 1.0, 1.0);
        TestPage page(links);
        constexpr int kBookings = 20'000;
        TestClock still[2];  // each thread its own, both standing at the same moment
        const std::uint64_t start = still[0].time;
        const auto book = [&](int rank) {
            LinkMeter meter(page.data(), links, rank, 2, still[rank]);
            for (int i = 0; i < kBookings; ++i) meter.read(3);
        };
        std::thread other([&] { book(1); });
        book(0);
        other.join();
        CHECK(page.page().live[0].read_until.load() == start + 2 * kBookings * 3);
    }

    TEST_CASE("the real clock rises, and its waits do not end early") {
        LinkClock& clock = LinkClock::real();
        std::uint64_t last = clock.now();
        for (int i = 0; i < 20'000; ++i) {
            const std::uint64_t time = clock.now();
            CHECK(time + 5000 >= last);  // a new reading of the system's clock may correct the rate
            last = time;
        }
        for (const std::uint64_t length : {1'000, 60'000, 400'000}) {
            const std::uint64_t until = clock.now() + length;
            CHECK(clock.wait(until) >= until);
        }
    }
}
