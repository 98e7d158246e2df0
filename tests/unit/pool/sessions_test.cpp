#include <doctest/doctest.h>

#include "tests/support/books_host.hpp"

using namespace test_support;

TEST_SUITE("pool.sessions") {
    TEST_CASE("a lost connection may come back with the token of the same process") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        host.registry->connection_lost(alice, kNow);
        CHECK_FALSE(host.registry->snapshot(kNow).sessions.at(0).connected);
        CHECK(host.registry->resume_session(alice, kAlice, Token{9}).error().code == Errc::kDenied);
        CHECK(host.registry->resume_session(alice, kBob, kToken).error().code == Errc::kDenied);
        CHECK(host.registry->resume_session(SessionId{99}, kAlice, kToken).error().code ==
              Errc::kNotFound);
        CHECK(host.registry->resume_session(alice, kAlice, kToken).ok());
        CHECK(host.registry->expire(kNow + 1h).empty());
    }

    TEST_CASE("one that does not come back within the grace ends") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        host.registry->connection_lost(alice, kNow);
        CHECK(host.registry->next_deadline() == kNow + 10s);
        CHECK(host.registry->expire(kNow + 9s).empty());
        CHECK(host.registry->expire(kNow + 10s) == std::vector<SessionId>{alice});
        CHECK(host.registry->snapshot(kNow).sessions.empty());
    }

    TEST_CASE("a session of another host that is silent is given up, and holds what it has") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kFarBob);
        const ArenaId arena = host.arena(bob);
        CHECK(host.arena(alice) == arena);
        const auto region = host.region(bob, arena);
        REQUIRE(region.ok());
        host.registry->connection_lost(bob, kNow);
        CHECK(host.registry->expire(kNow + 10s).empty());
        const Snapshot after = host.registry->snapshot(kNow);
        REQUIRE(after.sessions.size() == 2);
        CHECK(after.sessions.at(1).given_up);
        CHECK(after.sessions.at(1).host == "far");
        CHECK(after.sessions.at(1).bytes_owned == region->bytes);
        // It is too late to come back, and its arena stays when all others have left it.
        CHECK(host.registry->resume_session(bob, kFarBob, kToken).error().code == Errc::kNotFound);
        host.registry->end_session(alice, "test");
        CHECK(host.work.destroyed.empty());
        CHECK(host.registry->next_deadline() == TimePoint::max());
        host.registry->end_session(bob, "its host is fenced");
        CHECK(host.work.destroyed == std::vector<ArenaId>{arena});
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a session of a silent host that has nothing open ends") {
        RegistryHost host;
        host.registry->connection_lost(host.session(kFarBob), kNow);
        (void)host.registry->expire(kNow + 10s);
        CHECK(host.registry->remote_sessions().empty());
    }

    TEST_CASE("a session of another host is that of its host and of that host's boot") {
        RegistryHost host;
        const SessionId bob = host.session(kFarBob);
        Peer other = kFarBob;
        other.host = "";
        CHECK(host.registry->resume_session(bob, other, kToken).error().code == Errc::kDenied);
        other = kFarBob;
        ++other.boot;
        CHECK(host.registry->resume_session(bob, other, kToken).error().code == Errc::kDenied);
        CHECK(host.registry->resume_session(bob, kFarBob, kToken).ok());
    }

    TEST_CASE("after a restart a session of another host is one still, with its boot and lease") {
        RegistryHost host;
        const SessionId bob = host.session(kFarBob);
        (void)host.session(kAlice);
        CHECK(host.arena(bob) != ArenaId::kNone);
        host.restart();
        REQUIRE(host.restored.ok());
        const auto remote = host.registry->remote_sessions();
        REQUIRE(remote.size() == 1);
        CHECK(remote[0].id == bob);
        CHECK(remote[0].peer.host == "far");
        CHECK(remote[0].peer.boot == kFarBob.boot);
        CHECK(remote[0].peer.incarnation == kFarBob.incarnation);
        CHECK(remote[0].peer.is_seen_with(kFarBob));
        CHECK(host.registry->expire(kNow + 10s).size() == 1);
        CHECK(host.registry->remote_sessions().at(0).given_up);
        host.restart();  // for good
        CHECK(host.registry->remote_sessions().at(0).given_up);
        CHECK(host.registry->next_deadline() == TimePoint::max());
    }

    TEST_CASE("while a host is silent nothing that was granted in its arenas is granted again") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kFarBob);
        const ArenaId arena = host.arena(alice);
        CHECK(host.arena(bob) == arena);
        const auto before = host.region(alice, arena);
        REQUIRE(before.ok());
        host.registry->end_session(bob, "its host is lost", SessionEnd::kGivenUp);
        for (int again = 0; again < 2; ++again) {  // also for the next daemon
            REQUIRE(host.registry->free_region(alice, arena, RegionId{before->region_id}).ok() ==
                    (again == 0));
            const auto next = host.region(alice, arena);
            REQUIRE(next.ok());
            CHECK(next->offset != before->offset);
            CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_quarantined == before->bytes);
            if (again == 0) {
                host.restart();
                REQUIRE(host.registry->resume_session(alice, kAlice, kToken).ok());
                CHECK(host.registry->found_in_pool(arena, NotedWork::make(64 * 4096)));
            }
        }
        host.registry->end_session(bob, "its host is fenced");
        (void)host.settle();
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_quarantined == 0);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("survivors shrink past a silent host's rank, and its group's bytes are kept") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kFarBob);
        const ArenaId arena = host.arena(alice, "job", 4096 * 8192);
        CHECK(host.arena(bob, "job", 4096 * 8192) == arena);
        const auto groups = host.together({alice, bob}, arena, "ring");
        host.registry->end_session(bob, "its host is lost", SessionEnd::kGivenUp);
        REQUIRE(host.memory.dead.size() == 1);
        CHECK(host.memory.dead.back().second == 1);
        CHECK(host.group_of(host.shrink(alice, groups[0])).world == 1);
        // The old group is left by all that live; its block stays.
        REQUIRE(host.registry->leave_group(alice, groups[0]).ok());
        CHECK(host.registry->snapshot(kNow).groups.size() == 2);
        host.registry->end_session(bob, "its host is fenced");
        CHECK(host.registry->snapshot(kNow).groups.size() == 1);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a death that is seen twice is one death") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        host.registry->end_session(alice, "test");
        host.registry->end_session(alice, "test");
        host.registry->connection_lost(alice, kNow);
        CHECK(host.registry->problems().empty());
        CHECK(host.session(kAlice) != alice);
    }

    TEST_CASE("an arena is shared by name within a user and lives as long as a session has it") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice);
        CHECK(host.arena(bob) == arena);
        CHECK(host.registry->close_arena({alice, 900}, arena).ok());
        CHECK(host.registry->close_arena({alice, 900}, arena).error().code == Errc::kNotFound);
        CHECK(host.work.destroyed.empty());
        host.registry->end_session(bob, "test");
        CHECK(host.work.destroyed == std::vector<ArenaId>{arena});
        CHECK(host.registry->snapshot(kNow).arenas.empty());
        // Its records, of tens of thousands of regions perhaps, end elsewhere.
        REQUIRE(host.work.forgotten.size() == 1);
        CHECK(host.work.forgotten[0].first == arena);
        CHECK(host.work.forgotten[0].second.use_count() == 1);
    }

    TEST_CASE("another user's arena is denied and shows nothing") {
        RegistryHost host;
        const ArenaId arena = host.arena(host.session(kAlice));
        const SessionId mallory = host.session(kMallory);
        CHECK(host.arena(mallory) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kDenied);
        CHECK(host.region(mallory, arena).error().code == Errc::kNotFound);
        CHECK(host.registry->close_arena({mallory, 900}, arena).error().code == Errc::kNotFound);
        CHECK(host.join(mallory, arena, "g", 0, 1) == 0);
    }

    TEST_CASE("exclusive means that no session has it yet") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        CHECK(host.arena(alice, "job", 4096, 1) != ArenaId::kNone);
        CHECK(host.arena(alice, "job", 4096, 1) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kExists);
    }

    TEST_CASE(
        "while an arena is being made all that ask wait, and one that dies meanwhile is no "
        "member") {
        RegistryHost host;
        host.work.later = true;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const auto body = RegistryHost::arena_body("job", 8192);
        REQUIRE(host.registry->open_arena({alice, 1}, body).ok());
        REQUIRE(host.registry->open_arena({bob, 2}, body).ok());
        CHECK_FALSE(host.answered(1));
        host.registry->end_session(alice, "test");
        REQUIRE(host.work.created.size() == 1);
        host.registry->arena_made(host.work.created[0].first, NotedWork::make(8192));
        CHECK_FALSE(host.answered(1));
        CHECK(host.answer(2).error.code == Errc::kOk);
        CHECK(host.registry->snapshot(kNow).arenas.at(0).sessions == 1);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("an arena that cannot be made leaves nothing behind") {
        RegistryHost host;
        host.work.later = true;
        const SessionId alice = host.session(kAlice);
        REQUIRE(host.registry->open_arena({alice, 1}, RegistryHost::arena_body("job", 8192)).ok());
        host.registry->arena_made(host.work.created[0].first, Error{Errc::kNoMemory, 0, "pool"});
        CHECK(host.answer(1).error.code == Errc::kNoMemory);
        CHECK(host.registry->snapshot(kNow).arenas.empty());
        host.work.later = false;
        CHECK(host.arena(alice) != ArenaId::kNone);
    }

    TEST_CASE("an arena of more bytes than can be counted is more than the pool has") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        for (const Bytes bytes : {~Bytes{0}, ~Bytes{0} - 8192, Bytes{1} << 63}) {
            CHECK(host.arena(alice, "huge", bytes) == ArenaId::kNone);
            CHECK(host.last_error.code == Errc::kNoMemory);
        }
        CHECK(host.work.created.empty());
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("an arena made for a session that is gone is dropped at once") {
        RegistryHost host;
        host.work.later = true;
        const SessionId alice = host.session(kAlice);
        REQUIRE(host.registry->open_arena({alice, 1}, RegistryHost::arena_body("job", 8192)).ok());
        host.registry->end_session(alice, "test");
        const ArenaId arena = host.work.created[0].first;
        host.registry->arena_made(arena, NotedWork::make(8192));
        CHECK(host.work.destroyed == std::vector<ArenaId>{arena});
        host.restart();
        CHECK(host.restored.ok());
        CHECK(host.registry->snapshot(kNow).arenas.empty());
    }

    TEST_CASE("limits of arenas per session, quotas and draining refuse by name") {
        Limits limits;
        limits.max_arenas_per_session = 2;
        limits.user_quota_bytes = 1 << 20;
        RegistryHost host(limits);
        const SessionId alice = host.session(kAlice);
        CHECK(host.arena(alice, "a", 4096) != ArenaId::kNone);
        CHECK(host.arena(alice, "big", 1 << 20) == ArenaId::kNone);
        CHECK(std::string(host.last_error.step) == "quota of the user");
        CHECK(host.arena(alice, "b", 4096) != ArenaId::kNone);
        CHECK(host.arena(alice, "c", 4096) == ArenaId::kNone);
        CHECK(std::string(host.last_error.step) == "arenas of the session");
        host.registry->set_draining(true);
        const SessionId bob{99};
        CHECK(host.registry->open_session(kBob, "", kToken, kNow).error().code == Errc::kBusy);
        CHECK(host.registry->open_arena({bob, 1}, RegistryHost::arena_body("d", 1)).error().code ==
              Errc::kClosed);
    }

    TEST_CASE("what cannot be written down is not granted") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice);
        host.journal.broken = true;
        CHECK_FALSE(host.registry->open_session(kBob, "", kToken, kNow).ok());
        CHECK(host.arena(alice, "other") == ArenaId::kNone);
        CHECK_FALSE(host.region(alice, arena).ok());
        CHECK(host.join(alice, arena, "g", 0, 1) != 0);
        CHECK(host.group_of(host.requests).world == 0);
        CHECK(host.registry->problems().empty());
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_used == 0);
    }

    TEST_CASE("a release that was not written down stops grants until the journal is rewritten") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice);
        const auto region = host.region(alice, arena).value();
        host.journal.broken = true;
        CHECK(host.registry->free_region(alice, arena, RegionId{region.region_id}).ok());
        host.journal.broken = false;
        CHECK(host.registry->journal_behind());
        CHECK_FALSE(host.region(alice, arena).ok());
        host.journal.contents.entries.clear();
        REQUIRE(host.registry->write_journal(host.journal).ok());
        host.registry->journal_rewritten();
        CHECK(host.region(alice, arena).ok());
        host.restart();
        CHECK(host.restored.ok());
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a session with thousands of regions ends in pieces, and is gone for all meanwhile") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", Bytes{1} << 26);
        host.arena(bob);
        const auto groups = host.together({alice, bob}, arena, "ring");
        constexpr int kCount = 9000;
        for (int i = 0; i < kCount; ++i) REQUIRE(host.region(alice, arena).ok());
        const auto tensor = host.tensor(alice, arena, "last");
        REQUIRE(tensor.ok());
        REQUIRE(host.registry->leave_group(bob, groups[1]).ok());
        host.registry->end_session(alice, "test");
        const auto owned = [&] {
            return static_cast<int>(host.registry->snapshot(kNow).arenas.at(0).bytes_used / 4096);
        };
        CHECK(owned() >= kCount - 2048);
        CHECK(host.memory.dead.size() == 1);  // peers know at once
        CHECK(host.registry->snapshot(kNow).sessions.size() == 1);
        CHECK(host.registry->resume_session(alice, kAlice, kToken).error().code == Errc::kNotFound);
        CHECK_FALSE(host.region(alice, arena).ok());
        CHECK_FALSE(host.registry->open_region(bob, tensor->region).ok());
        const auto again = host.tensor(bob, arena, "last");
        REQUIRE(again.ok());
        CHECK(again->region.region_id != tensor->region.region_id);
        host.registry->end_session(alice, "test");
        host.registry->connection_lost(alice, kNow);
        int turns = 0;
        for (; host.registry->next_deadline() <= kNow; ++turns) {
            const int before = owned();
            CHECK(host.registry->problems().empty());
            CHECK(host.registry->expire(kNow).empty());
            CHECK(before - owned() <= 2048 + 128);  // at last the block of the group, too
        }
        CHECK(turns >= 3);
        CHECK(host.registry->snapshot(kNow).sessions.size() == 1);
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_used == again->region.bytes);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("many deaths in one turn are one turn's work") {
        RegistryHost host;
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(bob, "job", Bytes{1} << 26);
        std::vector<SessionId> ranks;
        for (int rank = 0; rank < 4; ++rank) {
            ranks.push_back(host.session(kAlice));
            host.arena(ranks.back());
            for (int i = 0; i < 1500; ++i) REQUIRE(host.region(ranks.back(), arena).ok());
        }
        for (const SessionId rank : ranks) host.registry->end_session(rank, "test");
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_used >= (6000 - 2048) * 4096);
        CHECK(host.settle() >= 2);
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_used == 0);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("what an ending session still has is in the way of no other") {
        Limits limits;
        limits.max_sessions_per_user = 2;
        RegistryHost host(limits);
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        constexpr int kCount = 5000;
        const ArenaId arena = host.arena(alice, "job", kCount * Bytes{4096});
        host.arena(bob);
        for (int i = 0; i < kCount; ++i) REQUIRE(host.region(alice, arena).ok());
        // After how many turns a region of so many pages is served.
        const auto room_for = [&](int pages) {
            bool served = false;
            int turns = 0;
            const bool waits =
                host.registry->park(bob, arena, pages * Bytes{4096}, true, [&] { served = true; });
            for (; waits && !served; ++turns) host.registry->expire(kNow);
            return turns;
        };
        SUBCASE("of the arena") {
            host.registry->end_session(alice, "test");
            CHECK(room_for(kCount) > 1);
            CHECK(host.region(bob, arena, kCount * Bytes{4096}).ok());
        }
        SUBCASE("of the arena, and no more of it goes in this turn than is needed") {
            host.registry->end_session(alice, "test");
            const auto left = [&] { return host.registry->snapshot(kNow).regions.size(); };
            const std::size_t before = left();
            REQUIRE(before > 3 * std::size_t(limits.freed_at_once));
            CHECK(room_for(1) == 0);
            CHECK(host.region(bob, arena, Bytes{4096}).ok());
            CHECK(left() == before + 1);
            CHECK(room_for(2 * kCount) == 0);
            CHECK_FALSE(host.region(bob, arena, 2 * kCount * Bytes{4096}).ok());
            CHECK(left() == before + 1);
            const int wanted = kCount - static_cast<int>(before) + 1;
            CHECK(room_for(wanted) == 1);
            CHECK(host.region(bob, arena, wanted * Bytes{4096}).ok());
            CHECK(left() == before + 2 - std::size_t(limits.freed_at_once));
        }
        SUBCASE("of the user's sessions") {
            host.registry->end_session(alice, "test");
            CHECK(host.registry->open_session(kAlice, "test", kToken, kNow).ok());
        }
        SUBCASE("of the name: an open of an arena that is being left makes a new one") {
            REQUIRE(host.registry->close_arena({bob, 900}, arena).ok());
            host.registry->end_session(alice, "test");
            const auto body = RegistryHost::arena_body("job", 8192);
            REQUIRE(host.registry->open_arena({bob, 77}, body).ok());
            CHECK_FALSE(host.answered(77));
            host.settle();
            const auto got = std::get<proto::ArenaOpen>(host.answer(77).body);
            CHECK(got.arena_id != raw(arena));
            CHECK(got.bytes == 8192);
        }
        host.settle();
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a daemon that is killed while a session ends goes on with its end") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", Bytes{1} << 26);
        host.arena(bob);
        for (int i = 0; i < 7000; ++i) REQUIRE(host.region(alice, arena).ok());
        host.registry->end_session(alice, "test");
        CHECK(host.registry->next_deadline() <= kNow);
        SUBCASE("as the records came") {}
        SUBCASE("after the journal was rewritten") {
            host.journal.contents = {};
            REQUIRE(host.registry->write_journal(host.journal).ok());
            // Some more of it behind that.
            (void)host.registry->expire(kNow);
        }
        host.restart();
        REQUIRE(host.restored.ok());
        CHECK(host.registry->contradictions().empty());
        CHECK(host.registry->resume_session(alice, kAlice, kToken).error().code == Errc::kNotFound);
        REQUIRE(host.registry->resume_session(bob, kBob, kToken).ok());
        REQUIRE(host.registry->found_in_pool(arena, NotedWork::make(Bytes{1} << 26)));
        host.settle();
        CHECK(host.registry->snapshot(kNow).sessions.size() == 1);
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_used == 0);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("an arena with many regions is closed in pieces, and answered when all are free") {
        RegistryHost host;
        host.limits.freed_at_once = 10;
        host.renew();
        constexpr int kCount = 35;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", kCount * Bytes{4096});
        bool stays = true;
        SUBCASE("next to a session that stays") {}
        SUBCASE("by its only session") {
            stays = false;
        }
        if (stays) host.arena(bob);
        for (int i = 0; i < kCount; ++i) REQUIRE(host.region(alice, arena).ok());
        const auto closed = host.registry->close_arena({alice, 71}, arena);
        REQUIRE(closed.ok());
        CHECK_FALSE(closed.value());
        CHECK(host.registry->snapshot(kNow).regions.size() == kCount - 10);
        CHECK(host.registry->next_deadline() <= kNow);
        // None of its own any more; an open of the name comes after it has left.
        CHECK(host.region(alice, arena).error().code == Errc::kNotFound);
        CHECK(host.registry->close_arena({alice, 72}, arena).error().code == Errc::kNotFound);
        const auto body = RegistryHost::arena_body("job", kCount * Bytes{4096});
        REQUIRE(host.registry->open_arena({alice, 73}, body).ok());
        for (std::size_t left = kCount - 10; left > 5; left -= 10) {
            CHECK_FALSE(host.answered(71));
            CHECK_FALSE(host.answered(73));
            host.registry->expire(kNow);
            CHECK(host.registry->snapshot(kNow).regions.size() == left - 10);
        }
        host.settle();
        CHECK(host.answer(71).error.code == Errc::kOk);
        const auto got = std::get<proto::ArenaOpen>(host.answer(73).body);
        CHECK((got.arena_id == raw(arena)) == stays);
        CHECK(host.region(alice, ArenaId{got.arena_id}, kCount * Bytes{4096}).ok());
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a close that goes on outlives the connection, the session and the daemon") {
        RegistryHost host;
        host.limits.freed_at_once = 1;
        host.renew();
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice, "job", 8 * Bytes{4096});
        for (int i = 0; i < 4; ++i) REQUIRE(host.region(alice, arena).ok());
        CHECK_FALSE(host.registry->close_arena({alice, 71}, arena).value());
        SUBCASE("asked again on the next connection") {
            host.registry->connection_lost(alice, kNow);
            REQUIRE(host.registry->resume_session(alice, kAlice, kToken).ok());
            CHECK_FALSE(host.registry->close_arena({alice, 81}, arena).value());
            host.settle();
            CHECK_FALSE(host.answered(71));
            CHECK(host.answered(81));
        }
        SUBCASE("a new arena needs what it had: that does not wait") {
            const ArenaId next = host.arena(alice, "next", 8 * Bytes{4096});
            CHECK_FALSE(host.answered(71));
            host.settle();
            CHECK(host.answered(71));
            REQUIRE(host.registry->close_arena({alice, 72}, next).value());
        }
        SUBCASE("its session ends") {
            host.registry->end_session(alice, "test");
            host.settle();
            CHECK_FALSE(host.answered(71));
            CHECK(host.registry->snapshot(kNow).sessions.empty());
        }
        SUBCASE("the daemon is killed: it is asked again, as for any answer that never came") {
            host.restart();
            REQUIRE(host.restored.ok());
            REQUIRE(host.registry->resume_session(alice, kAlice, kToken).ok());
            host.registry->found_in_pool(arena, NotedWork::make(8 * Bytes{4096}));
            CHECK(host.registry->close_arena({alice, 91}, arena).ok());
            host.settle();
        }
        CHECK(host.registry->snapshot(kNow).arenas.empty());
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a session with many regions ends in pieces, and its place is free before that") {
        BooksHost host;
        Session& alice = host.session();
        const SessionId id = alice.id;
        Arena& arena = host.arena({id});
        for (int i = 0; i < 5; ++i) {
            REQUIRE(host.regions.make(alice, arena, 4096, std::nullopt).ok());
        }
        int slice = 2;
        host.sessions.end(id, "test", slice, host.out);
        CHECK(slice == 0);
        CHECK(host.books.is_ending(id));
        CHECK(host.records(RecordType::kSessionEnding) == 1);
        CHECK(host.sessions.end_some(id, 1, host.out) == 0);
        CHECK(arena.regions.size() == 2);
        CHECK(host.books.users.sessions() == 0);
        CHECK(host.sessions.end_some(id, 3, host.out) == 1);
        CHECK(host.books.sessions.empty());
        CHECK(host.books.arenas.empty());
        CHECK(host.records(RecordType::kSessionEnded) == 1);
        CHECK(host.books.problems().empty());
    }
}
