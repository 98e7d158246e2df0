#include <doctest/doctest.h>

#include "tests/support/books_host.hpp"

using namespace test_support;

TEST_SUITE("pool.books") {
    TEST_CASE("what is sound has no problems, and each contradiction is named") {
        BooksHost host;
        Session& alice = host.session();
        Arena& arena = host.arena({alice.id});
        const RegionId first = host.regions.make(alice, arena, 4096, std::nullopt).value();
        const RegionId second = host.regions.make(alice, arena, 4096, std::nullopt).value();
        CHECK(host.books.problems().empty());
        const auto broken = [&](const char* how) {
            const auto found = host.books.contradictions();
            return std::count(found.begin(), found.end(), how) != 0;
        };
        SUBCASE("two owners of one byte") {
            arena.regions.at(second).offset = arena.regions.at(first).offset;
            CHECK(broken("two owners at offset 0"));
        }
        SUBCASE("bytes that are taken and have no owner") {
            CHECK(arena.space.allocate(4096));
            CHECK(broken(("leaked bytes in arena " + arena.name).c_str()));
        }
        SUBCASE("a region that its owner does not count") {
            --alice.regions;
            CHECK(broken("session 1 is miscounted"));
        }
        SUBCASE("an arena of a session that is not there") {
            arena.sessions.insert(SessionId{77});
            CHECK(broken("an arena has an unknown session"));
        }
        SUBCASE("a session that its user does not count") {
            host.books.users.give_session(alice.peer.uid);
            CHECK(broken("sessions are miscounted"));
        }
    }

    TEST_CASE("an arena does not exist for a session that has not opened it, or is leaving it") {
        BooksHost host;
        const SessionId alice = host.session().id;
        const SessionId bob = host.session().id;
        const ArenaId arena = host.arena({alice}).id;
        CHECK(host.books.arena_of(alice, arena).ok());
        CHECK(host.books.arena_of(bob, arena).error().code == Errc::kNotFound);
        CHECK_FALSE(host.books.is_being_left(host.books.arena(arena)));
        host.books.leaving[{alice, arena}] = std::nullopt;
        CHECK(host.books.arena_of(alice, arena).error().code == Errc::kNotFound);
        CHECK(host.books.is_being_left(host.books.arena(arena)));
    }
}
