#include <doctest/doctest.h>

#include <algorithm>

#include "tests/support/books_host.hpp"

using namespace test_support;

namespace {

/// Three sessions with a region each, in one arena and one group.
struct Trio {
    explicit Trio(const Limits& limits = {}) : host(limits) {
        arena = host.arena(sessions[0] = host.session(kAlice), "job", 8192 * 4096);
        sessions[1] = host.session(kBob);
        sessions[2] = host.session({103, 1000, 1000});
        for (int i = 1; i < 3; ++i) host.arena(sessions[static_cast<std::size_t>(i)]);
        for (int i = 0; i < 3; ++i) {
            regions[i] = host.region(sessions[static_cast<std::size_t>(i)], arena).value();
        }
        groups = host.together(sessions, arena, "ring");
    }
    std::string state_of(const proto::Region& region) const {
        for (const RegionView& view : host.registry->snapshot(kNow).regions) {
            if (view.id == region.region_id) return std::string(name_of(view.state));
        }
        return "free";
    }
    void leave(int rank) {
        const auto at = static_cast<std::size_t>(rank);
        CHECK(host.registry->leave_group(sessions[at], groups[at]).ok());
    }
    void kill(int rank) {
        host.registry->end_session(sessions[static_cast<std::size_t>(rank)], "killed");
    }

    RegistryHost host;
    ArenaId arena{};
    std::vector<SessionId> sessions{3};
    proto::Region regions[3];
    std::vector<proto::Group> groups;
};

/// Four sessions in one arena and one group.
struct Quartet {
    Quartet() {
        for (int i = 0; i < 4; ++i) {
            sessions.push_back(host.session({101 + i, 1000, 1000}));
            arena = host.arena(sessions.back(), "job", 4096 * 8192);
        }
        groups = host.together(sessions, arena, "ring");
    }
    void kill(std::size_t rank) { host.registry->end_session(sessions[rank], "killed"); }
    void leave(std::size_t rank, const proto::Group& group) {
        CHECK(host.registry->leave_group(sessions[rank], group).ok());
    }
    std::uint64_t ask(std::size_t rank) { return host.shrink(sessions[rank], groups[rank]); }
    std::vector<proto::Group> shrink_all(const std::vector<std::size_t>& ranks) {
        std::vector<std::uint64_t> asked;
        std::vector<proto::Group> smaller;
        for (const std::size_t rank : ranks) asked.push_back(ask(rank));
        for (const std::uint64_t request : asked) smaller.push_back(host.group_of(request));
        return smaller;
    }
    void restart() {
        host.restart();
        CHECK(host.restored.ok());
        for (std::size_t i = 0; i < 4; ++i) {
            const Peer peer{101 + static_cast<int>(i), 1000, 1000};
            (void)host.registry->resume_session(sessions[i], peer, kToken);  // some are dead
        }
        CHECK(host.registry->found_in_pool(arena, NotedWork::make(4096 * 8192)));
    }

    RegistryHost host;
    ArenaId arena{};
    std::vector<SessionId> sessions;
    std::vector<proto::Group> groups;
};

}  // namespace

TEST_SUITE("pool.groups") {
    TEST_CASE("a group is answered when the last rank has joined") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", 1 << 24);
        host.arena(bob);
        const auto first = host.join(alice, arena, "g", -1, 2);
        CHECK_FALSE(host.answered(first));
        CHECK(host.registry->snapshot(kNow).groups.at(0).state == GroupState::kForming);
        const auto second = host.join(bob, arena, "g", 0, 2);
        const proto::Group a = host.group_of(first);
        const proto::Group b = host.group_of(second);
        CHECK(a.rank == 1);
        CHECK(b.rank == 0);
        CHECK(a.group_id == b.group_id);
        CHECK(host.memory.formatted == std::vector<std::uint64_t>{a.block_offset});
    }

    TEST_CASE("another world size, a taken rank and a complete group are refused by name") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice, "job", 1 << 24);
        REQUIRE(host.join(alice, arena, "g", 0, 2) != 0);
        CHECK(host.join(alice, arena, "g", 1, 3) == 0);
        CHECK(host.last_error.code == Errc::kInvalid);
        CHECK(host.join(alice, arena, "g", 0, 2) == 0);
        CHECK(host.last_error.code == Errc::kExists);
        REQUIRE(host.join(alice, arena, "g", 1, 2) != 0);
        CHECK(host.join(alice, arena, "g", 1, 2) == 0);
        CHECK(host.last_error.code == Errc::kExists);
    }

    TEST_CASE("ranks that left a group join the next one of its name before all have left it") {
        Trio trio;
        const std::string name = trio.groups[0].name;
        const auto join = [&](std::size_t rank) {
            return trio.host.join(trio.sessions[rank], trio.arena, name.c_str(),
                                  static_cast<int>(rank), 3);
        };
        CHECK(join(0) == 0);
        CHECK(trio.host.last_error.code == Errc::kExists);
        trio.leave(0);
        const auto first = join(0);
        REQUIRE(first != 0);
        CHECK_FALSE(trio.host.answered(first));
        CHECK(join(1) == 0);
        trio.leave(2);
        const auto third = join(2);
        trio.leave(1);
        const auto second = join(1);
        const std::uint64_t next = trio.host.group_of(first).group_id;  // an answer is taken once
        CHECK(next > trio.groups[0].group_id);
        CHECK(trio.host.group_of(second).group_id == next);
        CHECK(trio.host.group_of(third).rank == 2);
        CHECK(trio.host.registry->problems().empty());
    }

    TEST_CASE("ranks that left a group hear that another one has not, once they are complete") {
        Trio trio;
        const std::string name = trio.groups[0].name;
        trio.leave(0);
        trio.leave(1);
        const auto first = trio.host.join(trio.sessions[0], trio.arena, name.c_str(), 0, 2);
        REQUIRE(first != 0);
        const auto second = trio.host.join(trio.sessions[1], trio.arena, name.c_str(), 1, 2);
        REQUIRE(second != 0);
        for (const std::uint64_t request : {first, second}) {
            (void)trio.host.group_of(request);
            CHECK(trio.host.last_error.code == Errc::kExists);
        }
        trio.leave(2);
        REQUIRE(trio.host.join(trio.sessions[0], trio.arena, name.c_str(), 0, 2) != 0);
        CHECK(trio.host.join(trio.sessions[1], trio.arena, name.c_str(), 1, 2) != 0);
        CHECK(trio.host.registry->problems().empty());
    }

    TEST_CASE("a rank that waits too long hears of it and no longer counts") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice, "job", 1 << 24);
        const auto first = host.join(alice, arena, "g", 0, 2, 1000);
        host.registry->expire(kNow + 1s);
        CHECK(host.answer(first).error.code == Errc::kTimeout);
        const auto second = host.join(alice, arena, "g", 0, 2);
        CHECK_FALSE(host.answered(second));
    }

    TEST_CASE("a member that dies while the group forms makes room for another") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", 1 << 24);
        host.arena(bob);
        host.join(alice, arena, "g", 0, 2);
        host.registry->end_session(alice, "test");
        const auto again = host.join(bob, arena, "g", 0, 2);
        const auto other = host.join(bob, arena, "g", 1, 2);
        CHECK(host.group_of(again).world == 2);
        CHECK(host.group_of(other).rank == 1);
        CHECK(host.memory.dead.empty());
    }

    TEST_CASE("a dead rank is marked, and its memory waits until the survivors are gone") {
        Trio trio;
        trio.kill(1);
        const std::vector<std::pair<std::uint64_t, int>> marked{{trio.groups[0].block_offset, 1}};
        CHECK(trio.host.memory.dead == marked);
        CHECK(trio.state_of(trio.regions[1]) == "quarantined");
        CHECK(trio.host.registry->snapshot(kNow).arenas.at(0).bytes_quarantined == 4096);
        trio.leave(0);
        CHECK(trio.state_of(trio.regions[1]) == "quarantined");
        trio.leave(2);
        CHECK(trio.state_of(trio.regions[1]) == "free");
        CHECK(trio.host.registry->snapshot(kNow).groups.empty());
        CHECK(trio.host.registry->problems().empty());
    }

    TEST_CASE("a rank that left before it ended is not dead, but its memory waits too") {
        Trio trio;
        trio.leave(1);
        trio.kill(1);
        CHECK(trio.host.memory.dead.empty());
        CHECK(trio.state_of(trio.regions[1]) == "quarantined");
        trio.kill(0);
        trio.kill(2);
        CHECK(trio.host.registry->snapshot(kNow).arenas.empty());
    }

    TEST_CASE("memory of a session that was in no group is free at once") {
        Trio trio;
        const SessionId loner = trio.host.session({104, 1000, 1000});
        trio.host.arena(loner);
        const auto region = trio.host.region(loner, trio.arena).value();
        trio.host.registry->end_session(loner, "test");
        CHECK(trio.state_of(region) == "free");
    }

    TEST_CASE("shrinking answers when every survivor has asked, in the old order without gaps") {
        Trio trio;
        trio.kill(0);
        const auto last = trio.host.shrink(trio.sessions[2], trio.groups[2]);
        CHECK_FALSE(trio.host.answered(last));
        const auto first = trio.host.shrink(trio.sessions[1], trio.groups[1]);
        const proto::Group a = trio.host.group_of(first);
        const proto::Group b = trio.host.group_of(last);
        CHECK(a.rank == 0);
        CHECK(b.rank == 1);
        CHECK(b.world == 2);
        CHECK(a.group_id != trio.groups[0].group_id);
        CHECK(a.epoch > trio.groups[0].epoch);
        CHECK(a.block_offset != trio.groups[0].block_offset);
        CHECK(trio.state_of(trio.regions[0]) == "free");
        // The old block stays until the old group is left: a rank may still read it.
        CHECK(trio.host.registry->snapshot(kNow).groups.size() == 2);
        trio.leave(1);
        trio.leave(2);
        CHECK(trio.host.registry->snapshot(kNow).groups.size() == 1);
        CHECK(trio.host.registry->problems().empty());
    }

    TEST_CASE("a survivor that dies while others wait to shrink no longer counts") {
        Trio trio;
        trio.kill(0);
        const auto asked = trio.host.shrink(trio.sessions[1], trio.groups[1]);
        CHECK_FALSE(trio.host.answered(asked));
        trio.kill(2);
        const proto::Group alone = trio.host.group_of(asked);
        CHECK(alone.world == 1);
        CHECK(trio.state_of(trio.regions[2]) == "free");
        CHECK(trio.host.registry->problems().empty());
    }

    TEST_CASE("a survivor that leaves instead of shrinking no longer counts either") {
        Trio trio;
        trio.kill(0);
        const auto asked = trio.host.shrink(trio.sessions[1], trio.groups[1]);
        trio.leave(2);
        CHECK(trio.host.group_of(asked).world == 1);
    }

    TEST_CASE("when one survivor gives up waiting, all that wait to shrink hear of it") {
        Trio trio;
        trio.kill(0);
        const auto impatient = trio.host.shrink(trio.sessions[1], trio.groups[1], 1000);
        trio.host.registry->expire(kNow + 999ms);
        CHECK_FALSE(trio.host.answered(impatient));
        trio.host.registry->expire(kNow + 1s);
        const Answer late = trio.host.answer(impatient);
        CHECK(late.error.code == Errc::kTimeout);
        // By its pid, too: that is what there is to look at.
        CHECK(late.reason.starts_with("rank 2 (pid "));
        CHECK(late.reason.ends_with(") did not ask to shrink the group"));
        const auto again = trio.host.shrink(trio.sessions[1], trio.groups[1]);
        const auto other = trio.host.shrink(trio.sessions[2], trio.groups[2]);
        CHECK(trio.host.group_of(again).world == 2);
        CHECK(trio.host.group_of(other).world == 2);
        CHECK(trio.host.shrink(trio.sessions[1], trio.groups[1]) == 0);
        CHECK(trio.host.last_error.code == Errc::kBroken);
    }

    TEST_CASE("a shrink whose group dies before all have met in it can be asked for again") {
        for (const bool restarted : {false, true}) {
            Quartet four;
            four.kill(0);
            const auto first = four.shrink_all({1, 2, 3});
            CHECK(first[1].world == 3);
            // Rank 3 dies on the way into the smaller group; the others notice and leave it.
            four.kill(3);
            four.leave(1, first[0]);
            if (restarted) four.restart();
            const auto early = four.ask(1);
            CHECK_FALSE(four.host.answered(early));
            four.leave(2, first[1]);
            CHECK_FALSE(four.host.answered(early));
            const auto late = four.ask(2);
            const proto::Group a = four.host.group_of(early);
            const proto::Group b = four.host.group_of(late);
            CHECK(a.world == 2);
            CHECK(a.group_id == b.group_id);
            CHECK(a.epoch > first[0].epoch);
            CHECK(b.rank == 1);
            CHECK(four.host.registry->problems().empty());
        }
    }

    TEST_CASE("a smaller group that all had left before a crash is over after it") {
        Quartet four;
        four.kill(0);
        const auto first = four.shrink_all({1, 2, 3});
        four.kill(3);
        four.leave(1, first[0]);
        four.leave(2, first[1]);
        // As if it had been killed after the last leave was written, before the group's end.
        auto& records = four.host.journal.contents.entries;
        while (records.back().type != RecordType::kGroupMember) records.pop_back();
        four.restart();
        const auto again = four.shrink_all({1, 2});
        CHECK(again[0].world == 2);
        CHECK(again[0].group_id == again[1].group_id);
        CHECK(four.host.registry->problems().empty());
    }

    TEST_CASE("a rank that failed to enter a smaller group from which others went on hears of it") {
        Quartet four;
        four.kill(0);
        const auto smaller = four.shrink_all({1, 2, 3});
        four.leave(1, smaller[0]);
        const auto again = four.ask(1);
        four.kill(3);
        const auto next = four.host.shrink(four.sessions[2], smaller[1]);
        CHECK(four.host.group_of(next).world == 1);
        CHECK(four.host.answer(again).error.code == Errc::kBroken);
        // Nor later, when that group has ended.
        four.leave(2, smaller[1]);
        CHECK(four.ask(1) == 0);
        CHECK(four.host.last_error.code == Errc::kBroken);
        four.restart();
        CHECK(four.ask(1) == 0);
        CHECK(four.host.last_error.code == Errc::kBroken);
    }

    TEST_CASE("under the name of a broken group a fresh one may meet, with a higher epoch") {
        Trio trio;
        trio.kill(0);
        const auto first = trio.host.join(trio.sessions[1], trio.arena, "ring", 0, 2);
        const auto second = trio.host.join(trio.sessions[2], trio.arena, "ring", 1, 2);
        CHECK(trio.host.group_of(first).epoch > trio.groups[0].epoch);
        CHECK(trio.host.group_of(second).world == 2);
        // The survivors may still shrink the old one; the name stays with the fresh one.
        const auto a = trio.host.shrink(trio.sessions[1], trio.groups[1]);
        const auto b = trio.host.shrink(trio.sessions[2], trio.groups[2]);
        CHECK(trio.host.group_of(a).world == 2);
        CHECK(trio.host.group_of(b).world == 2);
        CHECK(trio.host.join(trio.sessions[1], trio.arena, "ring", 0, 2) == 0);
        CHECK(trio.host.registry->problems().empty());
    }

    TEST_CASE("no room for the block is answered to all that waited") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice, "job", 4096);
        const auto first = host.join(alice, arena, "g", 0, 2);
        const auto second = host.join(alice, arena, "g", 1, 2);
        CHECK(host.answer(first).error.code == Errc::kNoMemory);
        CHECK(host.answer(second).error.code == Errc::kNoMemory);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("only members leave and shrink, and only once") {
        Trio trio;
        const SessionId loner = trio.host.session({104, 1000, 1000});
        trio.host.arena(loner);
        CHECK(trio.host.registry->leave_group(loner, trio.groups[0]).error().code ==
              Errc::kNotFound);
        CHECK(trio.host.shrink(loner, trio.groups[0]) == 0);
        trio.leave(0);
        CHECK_FALSE(trio.host.registry->leave_group(trio.sessions[0], trio.groups[0]).ok());
        REQUIRE(trio.host.shrink(trio.sessions[1], trio.groups[1]) != 0);
        CHECK(trio.host.shrink(trio.sessions[1], trio.groups[1]) == 0);
        CHECK(trio.host.last_error.code == Errc::kExists);
    }

    TEST_CASE("an arena holds only so many groups") {
        Limits limits;
        limits.max_groups_per_arena = 1;
        Trio trio(limits);
        CHECK(trio.host.join(trio.sessions[0], trio.arena, "second", 0, 1) == 0);
        CHECK(std::string(trio.host.last_error.step) == "groups of the arena");
    }

    TEST_CASE("thousands of regions are given back in pieces, between which others are served") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", Bytes{1} << 26);
        host.arena(bob);
        constexpr Bytes kCount = 5000;
        for (Bytes i = 0; i < kCount; ++i) REQUIRE(host.region(alice, arena).ok());
        const auto first = host.together({alice, bob}, arena, "first");
        const auto second = host.together({alice, bob}, arena, "second");
        host.registry->end_session(alice, "test");
        const auto left = [&] {
            return host.registry->snapshot(kNow).arenas.at(0).bytes_quarantined / 4096;
        };
        host.settle();
        CHECK(left() == kCount);
        REQUIRE(host.registry->leave_group(bob, first[1]).ok());
        CHECK(left() == kCount);  // the other group is a danger still
        CHECK(host.registry->next_deadline() > kNow);
        REQUIRE(host.registry->leave_group(bob, second[1]).ok());
        int turns = 0;
        while (host.registry->next_deadline() <= kNow) {
            const Bytes before = left();
            CHECK(before > 0);
            CHECK(host.registry->problems().empty());
            // What is not given back yet is not granted, what is can be.
            const auto region = host.region(bob, arena);
            REQUIRE(region.ok());
            host.registry->expire(kNow);
            CHECK(before - left() <= 2048);
            ++turns;
        }
        CHECK(turns >= 1);
        CHECK(left() == 0);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a daemon that is killed while it gives regions back goes on with it") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", Bytes{1} << 26);
        host.arena(bob);
        for (int i = 0; i < 3000; ++i) REQUIRE(host.region(alice, arena).ok());
        const auto groups = host.together({alice, bob}, arena, "ring");
        host.registry->end_session(alice, "test");
        host.settle();
        REQUIRE(host.registry->leave_group(bob, groups[1]).ok());
        CHECK(host.registry->next_deadline() <= kNow);
        host.restart();
        REQUIRE(host.restored.ok());
        CHECK(host.registry->contradictions().empty());
        REQUIRE(host.registry->resume_session(bob, kBob, kToken).ok());
        REQUIRE(host.registry->found_in_pool(arena, NotedWork::make(Bytes{1} << 26)));
        while (host.registry->next_deadline() <= kNow) host.registry->expire(kNow);
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_quarantined == 0);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a group is complete with its last rank, and all hear of it when it is formed") {
        BooksHost host;
        const SessionId alice = host.session().id;
        const SessionId bob = host.session().id;
        Arena& arena = host.arena({alice, bob}, 8192 * 4096);
        proto::Group body{};
        body.arena_id = raw(arena.id);
        copy_name(body.name, "ring");
        body.rank = -1;
        body.world = 2;
        CHECK_FALSE(host.groups.join({alice, 1}, body, kNow, host.out).value());
        const auto complete = host.groups.join({bob, 2}, body, kNow, host.out).value();
        REQUIRE(complete);
        CHECK(host.out.empty());
        host.groups.form(*complete, host.out);
        CHECK(host.records(RecordType::kGroupMade) == 1);
        REQUIRE(host.out.answers.size() == 2);
        CHECK(host.out.answers[1].to.session == bob);
        CHECK(arena.groups.size() == 1);
        CHECK(arena.dangers.groups.size() == 2);
        CHECK(host.books.problems().empty());
        // Dead is not gone: the survivor may still be storing into what the dead one held.
        host.groups.mark_dead(alice, arena, false, host.out);
        CHECK(arena.endangered(alice));
        host.groups.mark_dead(bob, arena, false, host.out);
        host.groups.leave_all(bob, arena, host.out);
        CHECK(arena.groups.empty());
        CHECK(arena.dangers.groups.empty());
    }
}
