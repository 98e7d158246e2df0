#include "emu/hosts/host_cache.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <thread>
#include <vector>

using namespace emu;

namespace {

// Two hosts over one pool of two lines, all in plain memory.
struct TwoHosts {
    alignas(64) std::uint64_t pool[16] = {};
    alignas(64) std::uint64_t lines[2][16] = {};
    alignas(64) std::uint64_t known[2][16] = {};
    LineLocks locks;
    HostCache a{bytes(pool), bytes(lines[0]), bytes(known[0]), sizeof pool, locks};
    HostCache b{bytes(pool), bytes(lines[1]), bytes(known[1]), sizeof pool, locks};
    std::uint64_t* at_a = lines[0];
    std::uint64_t* at_b = lines[1];

    static std::byte* bytes(std::uint64_t* words) { return reinterpret_cast<std::byte*>(words); }
};

}  // namespace

TEST_SUITE("emu.host_cache") {
    TEST_CASE("a store is seen elsewhere after both sides did their part, and not before") {
        TwoHosts two;
        two.at_a[3] = 7;
        two.b.acquire(0, 64);
        CHECK(two.at_b[3] == 0);
        two.a.publish(24, 8);
        CHECK(two.at_b[3] == 0);
        two.b.acquire(24, 8);
        CHECK(two.at_b[3] == 7);
    }

    TEST_CASE("a dirty line takes its whole line along: false sharing loses words") {
        TwoHosts two;
        two.at_a[0] = 1;
        two.at_b[1] = 2;
        two.a.publish(0, 8);
        two.b.publish(8, 8);
        CHECK(two.pool[0] == 0);
        CHECK(two.pool[1] == 2);
    }

    TEST_CASE("acquiring a dirty line writes it back first") {
        TwoHosts two;
        two.at_a[0] = 1;
        two.a.acquire(0, 64);
        CHECK(two.pool[0] == 1);
        CHECK(two.at_a[0] == 1);
    }

    TEST_CASE("what was stored with the value it had is published, and nothing next to it") {
        TwoHosts two;
        two.at_b[0] = 5;
        two.at_b[1] = 6;
        two.b.publish(0, 16);
        // This host never read the 5 and the 6: it stores a zero over its zero.
        two.at_a[0] = 0;
        two.a.publish(0, 8);
        CHECK(two.pool[0] == 0);
        CHECK(two.pool[1] == 6);
    }

    TEST_CASE("unasked, only dirty lines are written back and only clean ones fetched") {
        TwoHosts two;
        two.at_a[0] = 1;
        two.a.fetch_if_clean(0);
        CHECK(two.at_a[0] == 1);
        CHECK(two.pool[0] == 0);
        two.a.write_back_if_dirty(0);
        CHECK(two.pool[0] == 1);
        two.b.fetch_if_clean(8);
        CHECK(two.at_b[0] == 1);
        two.b.write_back_if_dirty(0);
        CHECK(two.pool[0] == 1);
    }

    TEST_CASE("a line moves as a whole: a host that sees the last word sees the others") {
        TwoHosts two;
        constexpr std::uint64_t kRounds = 3000;
        std::thread writer([&] {
            for (std::uint64_t round = 1; round <= kRounds; ++round) {
                for (int i = 0; i < 8; ++i) two.at_a[i] = round;
                two.a.publish(0, 64);
            }
        });
        bool torn = false;
        while (two.at_b[0] < kRounds) {
            two.b.acquire(0, 64);
            for (int i = 1; i < 8; ++i) torn = torn || two.at_b[i] != two.at_b[0];
        }
        writer.join();
        CHECK_FALSE(torn);
    }

    TEST_CASE("a thread's stores survive another thread that fetches the line") {
        TwoHosts two;
        std::atomic<bool> done{false};
        // Host b changes word 7 all the time; host a fetches it while it counts in word 0.
        std::thread other([&] {
            for (std::uint64_t i = 1; !done.load(); ++i) {
                two.b.acquire(0, 64);
                two.at_b[7] = i;
                two.b.publish(56, 8);
            }
        });
        std::thread fetcher([&] {
            while (!done.load()) two.a.fetch_if_clean(0);
        });
        std::atomic_ref<std::uint64_t> word(two.at_a[0]);
        bool lost = false;
        for (std::uint64_t i = 1; i <= 20000; ++i) {
            word.store(i, std::memory_order_relaxed);
            lost = lost || word.load(std::memory_order_relaxed) != i;
        }
        done = true;
        other.join();
        fetcher.join();
        CHECK_FALSE(lost);
    }
}
