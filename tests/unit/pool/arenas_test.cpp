#include <doctest/doctest.h>

#include "tests/support/books_host.hpp"

using namespace test_support;

namespace {

proto::ArenaOpen named(const Arena& arena) {
    return RegistryHost::arena_body(arena.name.c_str(), arena.bytes);
}

}  // namespace

TEST_SUITE("pool.arenas") {
    TEST_CASE("a new arena is answered when its memory is made, and dropped when its last leaves") {
        BooksHost host;
        const SessionId alice = host.session().id;
        const auto body = RegistryHost::arena_body("job", 4 * 4096);
        REQUIRE(host.arenas.open({alice, 7}, body, host.out).ok());
        REQUIRE(host.work.created.size() == 1);
        const ArenaId id = host.work.created.front();
        CHECK(host.out.empty());
        host.arenas.made(id, NotedWork::make(4 * 4096), host.out);
        REQUIRE(host.out.answers.size() == 1);
        CHECK(host.out.answers.front().to.request_id == 7);
        CHECK(host.records(RecordType::kArenaMade) == 1);
        CHECK(host.records(RecordType::kArenaJoined) == 1);
        int slice = 10;
        CHECK(host.arenas.close({alice, 8}, id, slice, host.out).value());
        CHECK(host.books.arenas.empty());
        CHECK(host.work.destroyed == std::vector{id});
        CHECK(host.books.problems().empty());
    }

    TEST_CASE("what is closed in pieces is answered as given back, when the last piece is") {
        BooksHost host;
        Session& alice = host.session();
        Arena& arena = host.arena({alice.id});
        for (int i = 0; i < 3; ++i) {
            REQUIRE(host.regions.make(alice, arena, 4096, std::nullopt).ok());
        }
        int slice = 2;
        const ArenaId id = arena.id;
        CHECK_FALSE(host.arenas.close({alice.id, 9}, id, slice, host.out).value());
        CHECK(slice == 0);
        CHECK(host.out.empty());
        CHECK(host.arenas.leave_some(alice.id, id, 5, host.out) == 4);
        CHECK(host.out.answers.empty());
        REQUIRE(host.out.given_back.size() == 1);
        CHECK(host.out.given_back.front().to.request_id == 9);
        CHECK(host.books.problems().empty());
    }

    TEST_CASE("a wait for the name of an arena that is dropped is handed on, not refused") {
        BooksHost host;
        Session& alice = host.session();
        const SessionId bob = host.session().id;
        Arena& arena = host.arena({alice.id});
        const proto::ArenaOpen wanted = named(arena);
        host.books.leaving[{alice.id, arena.id}] = std::nullopt;
        REQUIRE(host.arenas.open({bob, 5}, wanted, host.out).ok());
        CHECK(host.out.empty());
        (void)host.arenas.leave_some(alice.id, arena.id, 1, host.out);
        CHECK(host.out.answers.empty());
        REQUIRE(host.out.reopen.size() == 1);
        const Reopening again = host.out.reopen.front();
        CHECK(again.name == wanted.name);
        CHECK(again.wait.ticket.request_id == 5);
        REQUIRE(host.arenas.open(again.wait.ticket, wanted, host.out).ok());
        CHECK(host.work.created.size() == 1);
    }

    TEST_CASE("an arena is kept for the copy of another one's shard") {
        BooksHost host;
        Session& alice = host.session();
        Arena& arena = host.arena({});
        const ShardId guest{ArenaId{99}, RegionId{1}};
        REQUIRE(host.regions.make(alice, arena, 4096, std::nullopt, guest).ok());
        host.books.shards[guest].id = guest;
        host.arenas.drop_if_unused(arena.id, host.out);
        CHECK(host.books.arenas.count(arena.id) == 1);
    }
}
