// Which ranks wait for which, as the registry and the pages together say it.

#include <doctest/doctest.h>

#include "tests/support/registry_host.hpp"

using namespace test_support;
using fabricshm::SessionWait;
using fabricshm::WaitRecord;

namespace {

/// A group of four ranks, two of them of each of two sessions.
struct Quartet {
    Quartet() {
        alice = host.session(kAlice);
        bob = host.session(kBob);
        arena = host.arena(alice, "job", 1 << 24);
        host.arena(bob);
        std::vector<std::uint64_t> joins;
        for (int rank = 0; rank < 4; ++rank) {
            joins.push_back(host.join(rank < 2 ? alice : bob, arena, "g", rank, 4));
        }
        group = host.group_of(joins.front());
    }
    SessionWait wait(int rank, std::initializer_list<int> late) const {
        WaitRecord record{};
        record.arena_id = raw(arena);
        record.group_id = group.group_id;
        record.rank = rank;
        record.world = 4;
        record.bytes = 400;
        record.began_ns = std::chrono::nanoseconds(kNow.time_since_epoch()).count();
        fabricshm::set_kind(record, "allreduce");
        for (const int other : late) add_late(record, other);
        return {raw(rank < 2 ? alice : bob), record};
    }
    std::vector<WaitingView> rows(const std::vector<SessionWait>& shown) const {
        return host.registry->waiting(shown, kNow + 7s);
    }

    RegistryHost host;
    SessionId alice{};
    SessionId bob{};
    ArenaId arena{};
    proto::Group group{};
};

std::vector<int> late_of(const WaitingView& row) {
    std::vector<int> ranks;
    for (const LateRank& late : row.late) ranks.push_back(late.rank);
    return ranks;
}

}  // namespace

TEST_SUITE("pool.waiting") {
    TEST_CASE("ranks that wait in one operation make one row, with the process that is late") {
        const Quartet quartet;
        auto other = quartet.wait(3, {0});
        fabricshm::set_kind(other.record, "barrier");
        const auto rows = quartet.rows({quartet.wait(0, {2, 3}), quartet.wait(1, {2}), other});
        REQUIRE(rows.size() == 2);
        const WaitingView& row = rows[0].operation == "allreduce" ? rows[0] : rows[1];
        CHECK(row.arena == "job");
        CHECK(row.group == "g");
        CHECK(row.group_id == quartet.group.group_id);
        CHECK(row.world == 4);
        CHECK(row.bytes == 400);
        CHECK(row.waited_ms == 7000);
        CHECK(row.waiting == std::vector<std::int32_t>{0, 1});
        CHECK(late_of(row) == std::vector<int>{2, 3});
        CHECK(row.late[0].pid == kBob.pid);
        CHECK(row.late[0].session_id == raw(quartet.bob));
        CHECK(row.late_count == 2);
        CHECK(quartet.rows({}).empty());
    }

    TEST_CASE("of a chain of ranks that wait for each other, its beginning is late") {
        const Quartet quartet;
        const auto rows = quartet.rows(
            {quartet.wait(2, {1}), quartet.wait(3, {1, 2}), quartet.wait(0, {1, 2, 3})});
        REQUIRE(rows.size() == 1);
        CHECK(late_of(rows[0]) == std::vector<int>{1});
        const auto round = quartet.rows({quartet.wait(2, {1}), quartet.wait(1, {2})});
        REQUIRE(round.size() == 1);
        CHECK(late_of(round[0]) == std::vector<int>{1, 2});
    }

    TEST_CASE("a claim that the registry does not confirm makes no row") {
        const Quartet quartet;
        const auto refused = [&](auto change) {
            SessionWait wait = quartet.wait(0, {1});
            change(wait);
            return quartet.rows({wait}).empty();
        };
        CHECK_FALSE(refused([](SessionWait&) {}));
        CHECK(refused([](SessionWait& wait) { wait.session_id = 999; }));
        CHECK(refused([&quartet](SessionWait& wait) { wait.session_id = raw(quartet.bob); }));
        CHECK(refused([](SessionWait& wait) { wait.record.arena_id = 999; }));
        CHECK(refused([](SessionWait& wait) { wait.record.group_id = 999; }));
        CHECK(refused([](SessionWait& wait) { wait.record.rank = 2; }));
        CHECK(refused([](SessionWait& wait) { wait.record.world = 5; }));
        // A session shows no wait before it has lasted two seconds.
        CHECK(refused([](SessionWait& wait) { wait.record.began_ns = std::int64_t{1} << 62; }));
        const auto began = [](auto ago) {
            return [ago](SessionWait& wait) {
                const auto since = (kNow + 7s - ago).time_since_epoch();
                wait.record.began_ns = std::chrono::nanoseconds(since).count();
            };
        };
        CHECK(refused(began(1999ms)));
        CHECK_FALSE(refused(began(2s)));
    }

    TEST_CASE("a rank that died has no process") {
        Quartet quartet;
        quartet.host.registry->end_session(quartet.bob, "died");
        const auto rows = quartet.rows({quartet.wait(0, {3})});
        REQUIRE(rows.size() == 1);
        CHECK(rows[0].late.at(0).pid == 0);
    }

    TEST_CASE("a group that is forming waits for the ranks that have not come") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice, "job", 1 << 24);
        REQUIRE(host.join(alice, arena, "g", 1, 3, 60'000) != 0);
        CHECK(host.registry->waiting({}, kNow + 1s).empty());
        const auto rows = host.registry->waiting({}, kNow + 7s);
        REQUIRE(rows.size() == 1);
        CHECK(rows[0].operation == "join");
        CHECK(rows[0].waited_ms == 7000);
        CHECK(rows[0].waiting == std::vector<std::int32_t>{1});
        CHECK(late_of(rows[0]) == std::vector<int>{0, 2});
        REQUIRE(host.join(alice, arena, "g", -1, 3, 60'000) != 0);
        const auto any = host.registry->waiting({}, kNow + 7s);
        CHECK(any.at(0).late.empty());
        CHECK(any.at(0).late_count == 1);
    }

    TEST_CASE("a group that shrinks waits for the live ranks that have not asked") {
        RegistryHost host;
        std::vector<SessionId> sessions;
        for (const int pid : {101, 102, 103, 104})
            sessions.push_back(host.session({pid, 1000, 1000}));
        const ArenaId arena = host.arena(sessions[0], "job", 1 << 24);
        for (const SessionId session : sessions) host.arena(session);
        const auto groups = host.together(sessions, arena, "g");
        host.registry->end_session(sessions[0], "killed");
        REQUIRE(host.shrink(sessions[2], groups[2]) != 0);
        CHECK(host.registry->waiting({}, kNow + 1s).empty());
        const auto rows = host.registry->waiting({}, kNow + 7s);
        REQUIRE(rows.size() == 1);
        CHECK(rows[0].operation == "shrink");
        CHECK(rows[0].group == "g");
        CHECK(rows[0].waited_ms == 7000);
        CHECK(rows[0].waiting == std::vector<std::int32_t>{2});
        CHECK(late_of(rows[0]) == std::vector<int>{1, 3});
        CHECK(rows[0].late[0].pid == 102);
        CHECK(rows[0].late_count == 2);
    }
}
