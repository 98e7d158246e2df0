#include "fabricd/server/journal_compactor.hpp"

#include <doctest/doctest.h>

#include <optional>

#include "fabricd/pool/image.hpp"
#include "fabricd/server/event_loop.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::Result;
using test_support::TemporaryDirectory;

namespace {

Result<void> begin(JournalSink& sink) {
    return sink.add(StartRecord{kJournalMagic, 7, 0, kJournalVersion, 0});
}

/// The test's thread is the control thread.
struct Fixture {
    Fixture() {
        REQUIRE(journal.rewrite(begin).ok());
        compactor.start([this](const Result<void>& done) { outcome = done; });
    }
    void come_and_go(std::uint64_t first, std::uint64_t count) {
        for (std::uint64_t id = first; id < first + count; ++id) {
            SessionRecord record{};
            record.session = id;
            REQUIRE(journal.add(record).ok());
            REQUIRE(journal.add(SessionEndRecord{id}).ok());
        }
    }
    void serve_until_done() {
        const auto until = fabricshm::Clock::now() + std::chrono::seconds(30);
        while (!outcome && fabricshm::Clock::now() < until) REQUIRE(loop.turn(until).ok());
        REQUIRE(outcome);
    }

    TemporaryDirectory directory;
    EventLoop loop = EventLoop::make().value();
    Journal journal{directory.file("journal")};
    std::optional<Result<void>> outcome;
    JournalCompactor compactor{
        [this](std::function<void()> task) { return loop.post(std::move(task)); }};
};

}  // namespace

TEST_SUITE("server.journal_compactor") {
    TEST_CASE("a journal becomes short while records are appended, and is busy until then") {
        Fixture fixture;
        fixture.come_and_go(1, 3000);
        REQUIRE(fixture.compactor.begin(fixture.journal).ok());
        CHECK(fixture.compactor.is_busy());
        REQUIRE(fixture.compactor.begin(fixture.journal).ok());
        SessionRecord stays{};
        stays.session = 9000;
        REQUIRE(fixture.journal.add(stays).ok());
        fixture.serve_until_done();
        CHECK(fixture.outcome->ok());
        CHECK_FALSE(fixture.compactor.is_busy());
        CHECK(fixture.journal.size() < 1000);
        const PoolImage image = replay(read_journal(fixture.journal.path()).value()).value();
        CHECK(image.sessions.size() == 1);
        // And again.
        fixture.outcome.reset();
        REQUIRE(fixture.compactor.begin(fixture.journal).ok());
        fixture.serve_until_done();
        CHECK(fixture.outcome->ok());
    }

    TEST_CASE("a journal that was rewritten meanwhile stays, and that is said") {
        Fixture fixture;
        fixture.come_and_go(1, 100);
        REQUIRE(fixture.compactor.begin(fixture.journal).ok());
        REQUIRE(fixture.journal.rewrite(begin).ok());
        fixture.serve_until_done();
        CHECK(fixture.outcome->error().code == Errc::kBusy);
    }

    TEST_CASE("stopping breaks off what is being written, and removes it") {
        Fixture fixture;
        fixture.come_and_go(1, 20000);
        const auto size = fixture.journal.size();
        REQUIRE(fixture.compactor.begin(fixture.journal).ok());
        fixture.compactor.stop();
        CHECK(fixture.journal.size() == size);
        CHECK_FALSE(read_journal(fixture.journal.path())->damage);
        CHECK(read_journal(fixture.journal.path() + Compaction::kSuffix)->entries.empty());
    }
}
