#include "fabricd/server/event_loop.hpp"

#include <doctest/doctest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Fd;

namespace {

/// A descriptor that is ready from the start.
Fd ready() {
    return Fd(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
}

}  // namespace

TEST_SUITE("server.event_loop") {
    TEST_CASE("a turn until the earliest time of all waits for nothing") {
        // Would wait for an hour: work that goes on in slices asks for its next turn with it.
        EventLoop loop = EventLoop::make().value();
        CHECK(loop.turn(fabricshm::TimePoint::min()).ok());
    }

    TEST_CASE("a removed watch is not called any more, not even for an event of the same batch") {
        EventLoop loop = EventLoop::make().value();
        const Fd a = ready(), b = ready();
        EventLoop::WatchId ids[2];
        int calls = 0;
        const auto remove_both = [&](std::uint32_t) {
            ++calls;
            loop.remove(ids[0]);
            loop.remove(ids[1]);
        };
        ids[0] = loop.add(a.get(), EPOLLIN, remove_both).value();
        ids[1] = loop.add(b.get(), EPOLLIN, remove_both).value();
        REQUIRE(loop.turn(Clock::now()).ok());
        REQUIRE(loop.turn(Clock::now()).ok());
        CHECK(calls == 1);
    }

    TEST_CASE(
        "a watch that is changed waits for other events, and for none when there is no such one") {
        EventLoop loop = EventLoop::make().value();
        const Fd fd = ready();  // readable, and writable
        std::uint32_t seen = 0;
        const auto id =
            loop.add(fd.get(), EPOLLIN, [&](std::uint32_t events) { seen = events; }).value();
        loop.change(id, EPOLLOUT);
        loop.change(id + 1, EPOLLIN);
        REQUIRE(loop.turn(Clock::now()).ok());
        CHECK(seen == EPOLLOUT);
        loop.change(id, 0);
        seen = 0;
        REQUIRE(loop.turn(Clock::now()).ok());
        CHECK(seen == 0);
    }

    TEST_CASE("a descriptor number that is used again does not get the old one's events") {
        EventLoop loop = EventLoop::make().value();
        Fd old = ready();
        const int number = old.get();
        EventLoop::WatchId first = 0;
        Fd reused;
        int calls_of_new = 0;
        first = loop.add(number, EPOLLIN,
                         [&](std::uint32_t) {
                             loop.remove(first);
                             old.reset();
                             reused = Fd(::eventfd(0, EFD_CLOEXEC));
                             [[maybe_unused]] const auto added = loop.add(
                                 reused.get(), EPOLLIN, [&](std::uint32_t) { ++calls_of_new; });
                         })
                    .value();
        for (int i = 0; i < 3; ++i) REQUIRE(loop.turn(Clock::now()).ok());
        CHECK(reused.get() == number);
        CHECK(calls_of_new == 0);
    }

    TEST_CASE(
        "posted work runs on the loop's thread and wakes it; after close() there is no more") {
        EventLoop loop = EventLoop::make().value();
        std::thread::id ran_on;
        std::thread poster([&] { loop.post([&] { ran_on = std::this_thread::get_id(); }); });
        while (ran_on == std::thread::id()) {
            REQUIRE(loop.turn(fabricshm::TimePoint::max()).ok());
        }
        poster.join();
        CHECK(ran_on == std::this_thread::get_id());
        int ran = 0;
        REQUIRE(loop.post([&] { ++ran; }));
        loop.close();
        CHECK(ran == 1);
        CHECK_FALSE(loop.post([&] { ++ran; }));
    }

    TEST_CASE("a turn ends at its deadline, and at once when stopped") {
        EventLoop loop = EventLoop::make().value();
        const auto deadline = Clock::now() + 20ms;
        REQUIRE(loop.turn(deadline).ok());
        CHECK(Clock::now() >= deadline);
        CHECK_FALSE(loop.stopping());
        loop.stop();
        REQUIRE(loop.turn(fabricshm::TimePoint::max()).ok());
        CHECK(loop.stopping());
    }
}
