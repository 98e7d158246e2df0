#include "libfabricshm/client/arena.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <thread>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/fake_daemon.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using proto::Type;
using test_support::FakeDaemon;

namespace {

std::shared_ptr<Session> attach(const FakeDaemon& daemon) {
    SessionOptions options;
    options.sockets = {daemon.path()};
    options.timeout = 30s;
    return Session::open(options).value();
}

}  // namespace

TEST_SUITE("client.arena") {
    TEST_CASE("two sessions see the same bytes at their own addresses") {
        FakeDaemon daemon;
        const auto first = Arena::open(attach(daemon), "job", 2 * kMiB, 0).value();
        const auto second = Arena::open(attach(daemon), "job", 0, 0).value();
        CHECK(first->bytes() == 2 * kMiB);
        CHECK(second->bytes() == 2 * kMiB);
        CHECK(first->base() != second->base());
        std::strcpy(reinterpret_cast<char*>(first->base()), "hello");
        CHECK(std::string(reinterpret_cast<char*>(second->base())) == "hello");
    }

    TEST_CASE("a region is found by its id from another session and gone when it is freed") {
        FakeDaemon daemon;
        const auto first = Arena::open(attach(daemon), "job", kMiB, 0).value();
        const auto second = Arena::open(attach(daemon), "job", kMiB, 0).value();
        const auto made = first->create_region(5000).value();
        const auto found = second->open_region(made.region_id).value();
        CHECK(found.offset == made.offset);
        CHECK(found.bytes >= 5000);
        CHECK(first->free_region(made.region_id).ok());
        CHECK(second->open_region(made.region_id).error().code == Errc::kNotFound);
    }

    TEST_CASE("an arena is committed by one request, whose refusal has the daemon's words") {
        FakeDaemon daemon;
        const auto arena = Arena::open(attach(daemon), "job", kMiB, 0).value();
        CHECK(arena->commit().ok());
        CHECK(daemon.count(Type::kArenaCommit) == 1);
        CHECK(daemon.last(Type::kArenaCommit).arena.arena_id == arena->id());
        daemon.refuse_next(Type::kArenaCommit,
                           explain({Errc::kNoMemory, 0, "commit"}, "the pool is full"));
        const Result<void> refused = arena->commit();
        CHECK(refused.error().code == Errc::kNoMemory);
        CHECK(daemon.count(Type::kRegionCreate) == 0);
    }

    TEST_CASE(
        "a daemon that ends before it has committed an arena is asked again when it is back") {
        FakeDaemon daemon;
        const auto arena = Arena::open(attach(daemon), "job", kMiB, 0).value();
        daemon.be_silent(Type::kArenaCommit);
        Result<void> committed = Error{Errc::kInternal, 0, "test"};
        std::thread asks([&] { committed = arena->commit(); });
        CHECK(daemon.wait_for(Type::kArenaCommit, 1));
        daemon.die();
        daemon.speak();
        daemon.come_back();
        asks.join();
        CHECK(committed.ok());
        CHECK(daemon.count(Type::kArenaCommit) == 2);
    }

    TEST_CASE("a daemon that knows no such request is not sent it, and keeps the session") {
        FakeDaemon daemon;
        daemon.be_older();
        const auto arena = Arena::open(attach(daemon), "job", kMiB, 0).value();
        const Result<void> refused = arena->commit();
        CHECK(refused.error().code == Errc::kVersion);
        CHECK(std::string(reason_of(refused.error())).find("arena_commit") != std::string::npos);
        CHECK(daemon.count(Type::kArenaCommit) == 0);
        CHECK(daemon.connections() == 1);
        CHECK(arena->create_region(4096).ok());
        // Another one may be started while the session is open.
        daemon.die();
        daemon.be_newer();
        daemon.come_back();
        CHECK(arena->create_region(4096).ok());
        CHECK(arena->commit().ok());
    }

    TEST_CASE("memory without a round trip comes from one region and goes back with the arena") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const auto arena = Arena::open(session, "job", 8 * kMiB, 0).value();
        std::byte* block = arena->heap().allocate(1000).value();
        const int asked = daemon.count(Type::kRegionCreate);
        for (int i = 0; i < 100; ++i) CHECK(arena->heap().allocate(1000).ok());
        CHECK(daemon.count(Type::kRegionCreate) == asked);
        CHECK(block >= arena->base());
        CHECK(block < arena->base() + arena->bytes());
        arena->close();
        CHECK(daemon.wait_for(Type::kArenaClose, 1));
        CHECK(daemon.last(Type::kArenaClose).arena.arena_id == arena->id());
    }

    TEST_CASE("a refused open leaves nothing behind") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        daemon.refuse_next(Type::kArenaOpen, {Errc::kDenied, 0, ""});
        CHECK(Arena::open(session, "job", kMiB, 0).error().code == Errc::kDenied);
        CHECK(Arena::open(session, "", kMiB, 0).error().code == Errc::kInvalid);
        CHECK(Arena::open(session, "job", kMiB, 0).ok());
    }
}
