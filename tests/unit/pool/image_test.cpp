#include "fabricd/pool/image.hpp"

#include <doctest/doctest.h>

#include <cstddef>

#include "tests/support/registry_host.hpp"

using namespace test_support;
using fabricshm::Errc;

namespace {

/// A journal with a start record, an open session 1 and an arena 2.
struct Fixture {
    Fixture() {
        write(StartRecord{kJournalMagic, 5, 0, kJournalVersion, 0});
        SessionRecord session{};
        session.session = 1;
        write(session);
        ArenaRecord arena{};
        arena.arena = 2;
        write(arena);
    }
    template <typename Record>
    void write(const Record& record) {
        REQUIRE(journal.add(record).ok());
    }
    Errc refusal() const {
        const auto image = replay(journal.contents);
        return image.ok() ? Errc::kOk : image.error().code;
    }
    MemoryJournal journal;
};

GroupRecord group_of(std::uint64_t id, std::uint32_t world) {
    GroupRecord record{};
    record.arena = 2;
    record.group = id;
    record.world = world;
    return record;
}

}  // namespace

TEST_SUITE("pool.image") {
    TEST_CASE("a guest that has taken the pool over finds its own sessions, and no others") {
        RegistryHost host;
        const SessionId far = host.session(kFarBob);
        const SessionId silent = host.session(kFarBob);
        const SessionId near = host.session(kAlice);
        REQUIRE(host.arena(silent) != ArenaId::kNone);
        host.registry->end_session(silent, "test", SessionEnd::kGivenUp);
        const auto sessions_of = [&](const Peer& own) {
            PoolImage image = replay(host.journal.contents).value();
            const int ours = come_home(image, own);
            CHECK(image.sessions.size() == 3);
            CHECK(image.hosts.count(far) == (ours == 1 ? 0 : 1));
            CHECK(image.hosts.count(silent) == 1);  // the others have gone on without it
            CHECK(image.hosts.count(near) == 0);
            return ours;
        };
        CHECK(sessions_of(kFarBob) == 1);
        for (const auto change : {0, 1, 2, 3}) {
            Peer other = kFarBob;
            if (change == 0) other.host = "another";
            other.boot += change == 1;
            other.machine += change == 2;
            other.pid_namespace += change == 3;
            CHECK(sessions_of(other) == 0);
        }
    }

    TEST_CASE("an empty journal is an empty pool") {
        const auto image = replay(JournalContents{});
        REQUIRE(image.ok());
        CHECK(image->sessions.empty());
        CHECK(image->arenas.empty());
    }

    TEST_CASE("the largest id of any kind is the last that was given") {
        Fixture fixture;
        const auto image = replay(fixture.journal.contents);
        REQUIRE(image.ok());
        CHECK(image->daemon_epoch == 5);
        CHECK(image->last_id == 2);
    }

    TEST_CASE("the newest record of a region counts") {
        Fixture fixture;
        for (std::uint64_t generation = 1; generation <= 3; ++generation) {
            RegionRecord region{};
            region.arena = 2;
            region.region = 9;
            region.generation = generation;
            fixture.write(region);
        }
        const auto image = replay(fixture.journal.contents);
        REQUIRE(image.ok());
        const auto& regions = image->arenas.at(ArenaId{2}).regions;
        REQUIRE(regions.size() == 1);
        CHECK(regions.at(RegionId{9}).generation == 3);
    }

    TEST_CASE("a journal of another version is distinguished from a broken one") {
        MemoryJournal journal;
        REQUIRE(journal.add(StartRecord{kJournalMagic, 1, 0, kJournalVersion + 1, 0}).ok());
        CHECK(replay(journal.contents).error().code == Errc::kVersion);
        MemoryJournal nonsense;
        REQUIRE(nonsense.add(StartRecord{1, 1, 0, kJournalVersion, 0}).ok());
        CHECK(replay(nonsense.contents).error().code == Errc::kCorrupt);
    }

    TEST_CASE("records that do not fit each other are corrupt, whatever their checksums say") {
        Fixture fixture;
        SUBCASE("a session opened twice") {
            SessionRecord session{};
            session.session = 1;
            fixture.write(session);
        }
        SUBCASE("the end of a session that was never opened") {
            fixture.write(SessionEndRecord{77});
        }
        SUBCASE("a stranger in an arena") {
            fixture.write(ArenaJoinRecord{2, 77});
        }
        SUBCASE("a region of no arena") {
            RegionRecord region{};
            region.arena = 77;
            region.region = 1;
            fixture.write(region);
        }
        SUBCASE("a tensor's region without its tensor") {
            RegionRecord region{};
            region.arena = 2;
            region.region = 1;
            region.is_tensor = 1;
            fixture.write(region);
        }
        SUBCASE("a rank outside of its group") {
            const GroupRecord group = group_of(3, 2);
            const auto bytes = std::as_bytes(std::span(&group, 1));
            const std::size_t size = offsetof(GroupRecord, sessions) + 2 * sizeof(std::uint64_t);
            REQUIRE(fixture.journal.append(GroupRecord::kType, bytes.first(size)).ok());
            fixture.write(GroupMemberRecord{2, 3, 2, 1});
        }
        SUBCASE("a group with more or fewer members than it speaks of") {
            fixture.write(group_of(3, 2));
        }
        CHECK(fixture.refusal() == Errc::kCorrupt);
    }

    TEST_CASE("a record of another size is corrupt") {
        Fixture fixture;
        const std::byte one{};
        REQUIRE(fixture.journal.append(RecordType::kArenaGone, std::span(&one, 1)).ok());
        CHECK(fixture.refusal() == Errc::kCorrupt);
    }
}
