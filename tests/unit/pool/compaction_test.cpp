#include "fabricd/pool/compaction.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <set>

#include "fabricd/pool/image.hpp"
#include "tests/support/registry_host.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace test_support;
using fabricshm::Errc;

namespace {

SessionRecord session_record(std::uint64_t id) {
    SessionRecord record{};
    record.session = id;
    return record;
}

/// A journal of which little is still true.
struct Fixture {
    Fixture() : journal(path) {
        REQUIRE(journal
                    .rewrite([](JournalSink& sink) {
                        return sink.add(StartRecord{kJournalMagic, 7, 40, kJournalVersion, 0});
                    })
                    .ok());
        come_and_go(41, 500);
        REQUIRE(journal.add(session_record(2000)).ok());
    }
    void come_and_go(std::uint64_t first, std::uint64_t count) {
        for (std::uint64_t id = first; id < first + count; ++id) {
            REQUIRE(journal.add(session_record(id)).ok());
            REQUIRE(journal.add(SessionEndRecord{id}).ok());
        }
    }
    std::set<SessionId> sessions() const {
        std::set<SessionId> found;
        const PoolImage image = replay(read_journal(path).value()).value();
        for (const auto& [id, record] : image.sessions) found.insert(id);
        return found;
    }
    bool has_fresh_file() const { return ::access((path + ".compact").c_str(), F_OK) == 0; }

    TemporaryDirectory directory;
    std::string path = directory.file("journal");
    Journal journal;
};

}  // namespace

TEST_SUITE("pool.compaction") {
    TEST_CASE("a compacted journal is short, says the same, and goes on with later records") {
        Fixture fixture;
        const Bytes before = fixture.journal.size();
        auto compaction = Compaction::begin(fixture.journal).value();
        REQUIRE(compaction->write().ok());
        CHECK(compaction->is_near(fixture.journal));
        REQUIRE(compaction->finish(fixture.journal).ok());
        CHECK(fixture.journal.size() < before / 100);
        CHECK(fixture.sessions() == std::set{SessionId{2000}});
        CHECK(replay(read_journal(fixture.path).value())->last_id == 2000);
        REQUIRE(fixture.journal.add(session_record(2001)).ok());
        CHECK(fixture.sessions() == std::set{SessionId{2000}, SessionId{2001}});
        CHECK(read_journal(fixture.path)->unfinished_bytes == 0);
        compaction.reset();
        CHECK_FALSE(fixture.has_fresh_file());
        CHECK(::access(fixture.path.c_str(), F_OK) == 0);
    }

    TEST_CASE("what is appended at any moment of a compaction is in the new journal") {
        Fixture fixture;
        auto compaction = Compaction::begin(fixture.journal).value();
        REQUIRE(fixture.journal.add(session_record(3000)).ok());
        REQUIRE(compaction->write().ok());
        REQUIRE(fixture.journal.add(session_record(3001)).ok());
        // More than the control thread is to copy: the other one goes on first.
        fixture.come_and_go(4000, 1500);
        REQUIRE_FALSE(compaction->is_near(fixture.journal));
        REQUIRE(compaction->write().ok());
        REQUIRE(fixture.journal.add(SessionEndRecord{3000}).ok());
        REQUIRE(fixture.journal.append_releases({}).ok());
        REQUIRE(compaction->is_near(fixture.journal));
        REQUIRE(compaction->finish(fixture.journal).ok());
        CHECK(fixture.sessions() == std::set{SessionId{2000}, SessionId{3001}});
    }

    TEST_CASE("a journal that is written faster than it is copied is finished all the same") {
        Fixture fixture;
        auto compaction = Compaction::begin(fixture.journal).value();
        int rounds = 0;
        do {
            REQUIRE(compaction->write().ok());
            fixture.come_and_go(5000 + 2000 * static_cast<std::uint64_t>(++rounds), 2000);
        } while (!compaction->is_near(fixture.journal));
        CHECK(rounds == 8);
        REQUIRE(compaction->finish(fixture.journal).ok());
        CHECK(fixture.sessions() == std::set{SessionId{2000}});
    }

    TEST_CASE(
        "a compaction that is given up, or overtaken by a rewrite, leaves the journal alone") {
        Fixture fixture;
        auto compaction = Compaction::begin(fixture.journal).value();
        REQUIRE(compaction->write().ok());
        CHECK(fixture.has_fresh_file());
        compaction.reset();
        CHECK_FALSE(fixture.has_fresh_file());

        compaction = Compaction::begin(fixture.journal).value();
        compaction->cancel();
        CHECK(compaction->write().error().code == Errc::kClosed);

        compaction = Compaction::begin(fixture.journal).value();
        REQUIRE(compaction->write().ok());
        const PoolImage image = replay(read_journal(fixture.path).value()).value();
        REQUIRE(fixture.journal.rewrite([&](JournalSink& sink) { return write_image(image, sink); })
                    .ok());
        REQUIRE(fixture.journal.add(session_record(6000)).ok());
        CHECK(compaction->finish(fixture.journal).error().code == Errc::kBusy);
        CHECK(fixture.sessions() == std::set{SessionId{2000}, SessionId{6000}});
    }

    TEST_CASE("a file in which a bit has changed is noticed, and stays what it is") {
        Fixture fixture;
        const fabricshm::Fd file(::open(fixture.path.c_str(), O_RDWR | O_CLOEXEC));
        char byte = 0;
        REQUIRE(::pread(file.get(), &byte, 1, 5000) == 1);
        byte ^= 4;
        REQUIRE(::pwrite(file.get(), &byte, 1, 5000) == 1);
        auto compaction = Compaction::begin(fixture.journal).value();
        CHECK(compaction->write().error().code == Errc::kCorrupt);
        compaction.reset();
        CHECK_FALSE(fixture.has_fresh_file());
        CHECK(read_journal(fixture.path)->damage);
    }

    TEST_CASE("a group, a tensor, a shard and the dead among them are the same in the short form") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", 4096 * 4096);
        host.arena(bob, "job", 4096 * 4096);
        REQUIRE(host.tensor(alice, arena, "weights").ok());
        REQUIRE(host.region(bob, arena).ok());
        proto::Shard body{};
        body.header.arena_id = raw(arena);
        copy_name(body.name, "shard");
        body.dtype = 5;
        body.ndim = 1;
        body.shape[0] = 20000;
        REQUIRE(host.registry->create_shard(alice, body).ok());
        const auto groups = host.together({alice, bob}, arena, "ring");
        host.registry->end_session(bob, "test");
        host.shrink(alice, groups[0]);
        const JournalContents brief = compacted(host.journal.contents);
        CHECK(brief.entries.size() < host.journal.contents.entries.size());
        CHECK(records_after(brief).value() == records_after(host.journal.contents).value());
    }
}
