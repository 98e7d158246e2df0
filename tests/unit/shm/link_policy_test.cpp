#include "libfabricshm/shm/link_policy.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/support/link_fixture.hpp"

using namespace fabricshm;

namespace {

LinkImage slow_link() {
    return shared_link(1, 640, 700, 0.1, 0.1);
}

struct Bench {
    Bench() : page(slow_link()), policy(LinkPolicy::open(page.data(), clock).value()) {}

    // An arena of 1 MiB that the policy stands behind.
    Visibility view() { return {policy.get(), arena.data(), arena.size()}; }

    TestClock clock;
    TestPage page;
    std::shared_ptr<LinkPolicy> policy;
    std::vector<std::byte> arena = std::vector<std::byte>(1 << 20);
};

struct Noting final : VisibilityPolicy {
    void publish(const Access& access) noexcept override { published += access.bytes; }
    void acquire(const Access& access) noexcept override { acquired += access.bytes; }
    bool coherent() const noexcept override { return false; }
    Bytes published = 0;
    Bytes acquired = 0;
};

}  // namespace

TEST_SUITE("shm.link_policy") {
    TEST_CASE("a job that dies with bytes booked holds the others up for those, and no longer") {
        const TestPage pool(slow_link());
        const TestPage own(slow_link());
        const TestPage other(slow_link());
        TestClock clock;
        std::vector<std::byte> bytes(100'000);
        {
            const auto dies = LinkPolicy::open(other.data(), clock, pool.data(), 1).value();
            const Visibility view{dies.get(), bytes.data(), bytes.size()};
            view.step(PoolStep::kBegin);
            view.acquire(TouchPoint::kDirectRead, bytes.data(), bytes.size(), 1);
        }
        const auto lives = LinkPolicy::open(own.data(), clock, pool.data(), 0).value();
        const Visibility view{lives.get(), bytes.data(), bytes.size()};
        const auto take = [&] {
            const std::uint64_t start = clock.time;
            view.step(PoolStep::kBegin);
            view.acquire(TouchPoint::kDirectRead, bytes.data(), bytes.size(), 1);
            view.step(PoolStep::kEnd);
            return clock.time - start;
        };
        CHECK(take() == 20'000 + 640);
        CHECK(take() == 10'000 + 640);
        // Nonsense costs ten seconds at most, and what is further ahead costs nothing.
        pool.page().live[0].read_until = clock.time + 9'000'000'000;
        CHECK(take() < 10'000'000'000);
        pool.page().live[0].read_until = ~std::uint64_t{0};
        CHECK(take() == 10'000 + 640);
    }

    TEST_CASE("a page of another slow_link is left alone") {
        const TestPage own(slow_link());
        const TestPage pool(shared_link(2, 1, 1, 1, 1));
        TestClock clock;
        std::vector<std::byte> bytes(1000);
        const auto job = LinkPolicy::open(own.data(), clock, pool.data(), 0).value();
        const Visibility view{job.get(), bytes.data(), bytes.size()};
        view.step(PoolStep::kBegin);
        view.acquire(TouchPoint::kDirectRead, bytes.data(), bytes.size(), 1);
        CHECK(pool.page().live[0].read_until.load() == 0);
        CHECK(own.page().live[0].read_until.load() != 0);
    }

    TEST_CASE("bytes that cross and bytes of one's own take the links") {
        Bench bench;
        const Visibility view = bench.view();
        const std::uint64_t start = bench.clock.time;
        view.step(PoolStep::kBegin);
        view.acquire(TouchPoint::kDirectRead, bench.arena.data(), 10'000, 1);
        view.use(20'000, 0);
        view.publish(TouchPoint::kDirectWrite, bench.arena.data(), 10'000, 1);
        CHECK(bench.clock.time == start);
        view.step(PoolStep::kEnd);
        CHECK(bench.clock.time == start + 640 + 3000);
    }

    TEST_CASE("a poll of a word takes half a read, and it is raised after what was written") {
        Bench bench;
        const Visibility view = bench.view();
        const std::uint64_t start = bench.clock.time;
        view.step(PoolStep::kBegin);
        view.acquire(TouchPoint::kClockRead, bench.arena.data(), kCacheLine, 1);
        // A line of 64 bytes takes 6 ns.
        CHECK(bench.clock.time == start + 6 + 320);
        view.publish(TouchPoint::kSlot, bench.arena.data(), 10'000);
        view.step(PoolStep::kSignal);
        CHECK(bench.clock.time == start + 6 + 640 + 1000 + 700);
        view.publish(TouchPoint::kClock, bench.arena.data(), 8);
        view.step(PoolStep::kEnd);
        CHECK(bench.clock.time == start + 6 + 640 + 1000 + 700);
    }

    TEST_CASE("a message is there before the word that announces it") {
        Bench bench;
        const std::uint64_t start = bench.clock.time;
        bench.view().publish(TouchPoint::kMessage, bench.arena.data(), 10'000, 1);
        CHECK(bench.clock.time == start + 700 + 1000);
    }

    TEST_CASE("what lies outside the arena costs nothing") {
        Bench bench;
        std::vector<std::byte> elsewhere(4096);
        const std::uint64_t start = bench.clock.time;
        bench.view().publish(TouchPoint::kMessage, elsewhere.data(), 4096, 1);
        CHECK(bench.clock.time == start);
    }

    TEST_CASE("a slow_link says its name and whether its hosts are coherent") {
        LinkImage links = slow_link();
        links.incoherent = 1;
        TestPage page(links);
        const auto apart = LinkPolicy::open(page.data()).value();
        CHECK_FALSE(apart->coherent());
        CHECK(std::string(apart->machine()) == "test");
        CHECK(Bench().policy->coherent());
        page.page().magic = 1;
        CHECK(LinkPolicy::open(page.data()).error().code == Errc::kCorrupt);
    }

    TEST_CASE("a policy behind it is served too, and a page that is too short is refused") {
        const auto map_page = [](Bytes bytes, const LinkImage& links) {
            const Fd file(::memfd_create("page", MFD_CLOEXEC));
            REQUIRE(::ftruncate(file.get(), static_cast<off_t>(kLinkPageBytes)) == 0);
            Mapping whole = Mapping::map(file, 0, kLinkPageBytes, {}).value();
            format_links(whole.data(), links);
            return Mapping::map(file, 0, bytes, {}).value();
        };
        const LinkImage free = shared_link(1, 0, 0, 0, 0);
        CHECK(LinkPolicy::open(map_page(4096, free), nullptr).error().code == Errc::kCorrupt);
        const auto inner = std::make_shared<Noting>();
        const auto policy = LinkPolicy::open(map_page(kLinkPageBytes, free), inner).value();
        std::byte arena[256];
        const Visibility view(policy.get(), arena, sizeof arena);
        view.publish(TouchPoint::kShare, arena, 100);
        view.acquire(TouchPoint::kShareRead, arena, 50, 1);
        CHECK(inner->published == 100);
        CHECK(inner->acquired == 50);
        CHECK_FALSE(view.coherent());
    }

    TEST_CASE("threads have meters of their own on the links that they share") {
        Bench bench;
        const std::uint64_t start = bench.clock.time;
        const auto read = [&] { bench.policy->use(10'000, 0); };
        read();
        std::thread(read).join();
        CHECK(bench.page.page().live[0].read_until.load() == start + 2000);
    }
}
