#include "libfabricshm/client/arena.hpp"

#include <doctest/doctest.h>

#include <cstring>

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
