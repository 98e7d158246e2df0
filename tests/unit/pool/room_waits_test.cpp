#include "fabricd/pool/room_waits.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include "tests/support/books_host.hpp"

using namespace test_support;

namespace {

constexpr int kRegions = 100;
constexpr int kPiece = 10;

/// A daemon whose first session, alice, ended with a hundred regions, of which ninety are left.
struct Ending : RegistryHost {
    explicit Ending(Limits wanted = {}) : RegistryHost(with_pieces(wanted)) {
        alice = session(kAlice);
        bob = session(kBob);
        job = arena(alice, "job", kRegions * Bytes{4096});
        for (int i = 0; i < kRegions; ++i) REQUIRE(region(alice, job).ok());
    }
    static Limits with_pieces(Limits limits) {
        limits.freed_at_once = kPiece;
        return limits;
    }
    void end_alice() {
        registry->end_session(alice, "test");
        REQUIRE(regions() == kRegions - kPiece);
    }
    std::size_t regions() const { return registry->snapshot(kNow).regions.size(); }
    Result<void> open(std::uint64_t request, const char* name, SessionId by) {
        return registry->open_arena({by, request}, arena_body(name, 4096));
    }
    Errc answered_with(std::uint64_t request) { return answer(request).error.code; }
    SessionId alice{};
    SessionId bob{};
    ArenaId job{};
};

Limits arenas_per_user(int most) {
    Limits limits;
    limits.max_arenas_per_user = most;
    return limits;
}

/// An arena of which one session holds every byte.
struct Full : BooksHost {
    Full() {
        holder = session().id;
        other = session().id;
        Arena& made = arena({holder, other});
        full = made.id;
        REQUIRE(regions.make(books.session(holder), made, made.bytes, std::nullopt).ok());
    }
    bool waits_for_page(SessionId by) {
        return waits.wait_for_hole(by, full, 4096, true, [this] { ++served; });
    }
    RoomWaits waits{{books, regions, arenas, work}};
    SessionId holder{};
    SessionId other{};
    ArenaId full{};
    int served = 0;
};

}  // namespace

TEST_SUITE("pool.room_waits") {
    TEST_CASE("a new arena is opened at once, and gives back nothing of what ends") {
        Ending host;
        host.end_alice();
        REQUIRE(host.open(1, "next", host.bob).ok());
        CHECK(host.answered_with(1) == Errc::kOk);
        CHECK(host.regions() == kRegions - kPiece);
    }

    TEST_CASE("one arena too many is opened when those that end have gone, a piece in a turn") {
        Ending host(arenas_per_user(1));
        host.end_alice();
        REQUIRE(host.open(1, "next", host.bob).ok());
        CHECK(host.regions() == kRegions - kPiece);
        for (int turn = 2; turn <= kRegions / kPiece; ++turn) {
            CHECK_FALSE(host.answered(1));
            host.registry->expire(kNow);
            CHECK(host.regions() == std::size_t(kRegions - turn * kPiece));
        }
        CHECK(host.answered_with(1) == Errc::kOk);
        CHECK(host.registry->next_deadline() == TimePoint::max());
    }

    TEST_CASE("one that is still too many then is refused, with the limit's name") {
        Ending host(arenas_per_user(1));
        host.arena(host.bob, "job", 0);  // so that it stays
        host.end_alice();
        REQUIRE(host.open(1, "next", host.bob).ok());
        host.settle();
        const Answer got = host.answer(1);
        CHECK(got.error.code == Errc::kNoMemory);
        CHECK(got.reason.find("limits.arenas_per_user") != std::string::npos);
    }

    TEST_CASE("nothing waits where nothing is given back") {
        Ending host(arenas_per_user(1));
        CHECK(host.open(1, "next", host.bob).error().code == Errc::kNoMemory);
        CHECK(host.registry->next_deadline() == TimePoint::max());
    }

    TEST_CASE("a session that ends meanwhile is given no arena") {
        Ending host(arenas_per_user(1));
        host.end_alice();
        REQUIRE(host.open(1, "next", host.bob).ok());
        host.registry->end_session(host.bob, "test");
        host.settle();
        CHECK_FALSE(host.answered(1));
        CHECK(host.registry->snapshot(kNow).arenas.empty());
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("an arena for which the pool is too full is made once more, and then refused") {
        Ending host;
        host.work.later = true;
        const auto full = [] { return Error{Errc::kNoMemory, 0, "pool is full"}; };
        host.end_alice();
        REQUIRE(host.open(1, "next", host.bob).ok());
        const ArenaId next = host.work.created.back().first;
        const std::size_t made = host.work.created.size();
        host.registry->arena_made(next, full());
        CHECK_FALSE(host.answered(1));
        host.settle();
        REQUIRE(host.work.created.size() == made + 1);
        CHECK(host.work.created.back().first == next);
        SUBCASE("it has enough now") {
            host.registry->arena_made(next, NotedWork::make(4096));
            CHECK(host.answered_with(1) == Errc::kOk);
        }
        SUBCASE("it still has not") {
            host.registry->arena_made(next, full());
            CHECK(host.answered_with(1) == Errc::kNoMemory);
            CHECK(host.registry->snapshot(kNow).arenas.empty());
        }
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a region waits as long as it has to, and no longer") {
        Ending host;
        host.arena(host.bob, "job", 0);
        host.end_alice();
        int served = 0;
        const auto park = [&](int pages) {
            return host.registry->park(host.bob, host.job, pages * Bytes{4096}, true,
                                       [&] { ++served; });
        };
        CHECK_FALSE(park(kPiece));             // there is room
        CHECK_FALSE(park(kRegions + kPiece));  // there never will be
        REQUIRE(park(3 * kPiece));
        REQUIRE(park(kRegions));
        host.registry->expire(kNow);
        CHECK(served == 0);
        host.registry->expire(kNow);
        CHECK(served == 1);
        host.settle();
        CHECK(served == 2);
        CHECK(host.regions() == 0);
    }

    TEST_CASE("a session's place is free for the next as soon as its end has begun") {
        Limits limits;
        limits.max_sessions_per_user = 2;
        Ending host(limits);
        CHECK_FALSE(host.registry->open_session(kAlice, "test", kToken, kNow).ok());
        host.end_alice();
        CHECK(host.registry->open_session(kAlice, "test", kToken, kNow).ok());
        CHECK(host.regions() == kRegions - kPiece);
        CHECK_FALSE(host.registry->open_session(kAlice, "test", kToken, kNow).ok());
        CHECK(host.registry->contradictions().empty());
    }

    TEST_CASE("the end of a session that came later keeps no request waiting") {
        Full host;
        const SessionId first = host.session().id;
        host.books.ending = {first};
        REQUIRE(host.waits_for_page(host.holder));
        const SessionId second = host.session().id;
        host.books.ending = {second};
        host.waits.serve_some(host.out);
        CHECK(host.served == 1);
        host.books.ending = {};
        host.books.leaving[{second, ArenaId{1}}] = std::nullopt;
        REQUIRE(host.waits_for_page(host.holder));
        host.waits.serve_some(host.out);
        CHECK(host.served == 1);
        CHECK_FALSE(host.waits.empty());
    }

    TEST_CASE(
        "in one turn few are tried, each in its turn, and of one session as many wait as may") {
        Full host;
        host.books.ending = {host.session().id};
        const int most = host.books.limits.max_waits_per_session;
        REQUIRE(most > RoomWaits::kAttempts);
        for (int i = 0; i < most; ++i) REQUIRE(host.waits_for_page(host.holder));
        CHECK_FALSE(host.waits_for_page(host.holder));
        CHECK(host.waits_for_page(host.other));
        host.waits.serve_some(host.out);
        CHECK(host.served == 0);
        host.books.ending = {};
        for (int left = most + 1; left > 0; left -= RoomWaits::kAttempts) {
            const int before = host.served;
            host.waits.serve_some(host.out);
            CHECK(host.served - before == std::min(left, RoomWaits::kAttempts));
        }
        CHECK(host.waits.empty());
        host.books.ending = {host.holder};
        CHECK(host.waits_for_page(host.other));
    }
}
