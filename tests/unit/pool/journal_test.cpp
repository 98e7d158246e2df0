#include "fabricd/pool/journal.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "fabricd/pool/image.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using fabricshm::Errc;
using test_support::TemporaryDirectory;

namespace {

std::vector<char> read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::vector<char>& bytes, std::size_t count) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(count));
}

SessionRecord session_record(std::uint64_t id) {
    SessionRecord record{};
    record.session = id;
    record.pid = 100;
    return record;
}

/// A start and three sessions.
void fill(JournalSink& journal) {
    REQUIRE(journal.add(StartRecord{kJournalMagic, 7, 40, kJournalVersion, 0}).ok());
    for (std::uint64_t id = 41; id < 44; ++id) REQUIRE(journal.add(session_record(id)).ok());
}

}  // namespace

TEST_SUITE("pool.journal") {
    TEST_CASE("what was appended is there after opening again, and appending goes on") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("journal");
        JournalContents contents;
        {
            Journal journal = Journal::open(path, &contents).value();
            CHECK(contents.entries.empty());
            fill(journal);
        }
        {
            Journal journal = Journal::open(path, &contents).value();
            CHECK(contents.entries.size() == 4);
            CHECK_FALSE(contents.torn);
            REQUIRE(journal.add(SessionEndRecord{41}).ok());
        }
        REQUIRE(Journal::open(path, &contents).ok());
        const PoolImage image = replay(contents).value();
        CHECK(image.daemon_epoch == 7);
        CHECK(image.last_id == 43);
        CHECK(image.sessions.size() == 2);
    }

    TEST_CASE("torn at any byte, it keeps all whole records and goes on after them") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("journal");
        JournalContents contents;
        {
            Journal journal = Journal::open(path, &contents).value();
            fill(journal);
        }
        const std::vector<char> whole = read_file(path);
        const std::size_t start = sizeof(RecordHeader) + sizeof(StartRecord);
        const std::size_t each = sizeof(RecordHeader) + sizeof(SessionRecord);
        REQUIRE(whole.size() == start + 3 * each);
        for (std::size_t size = 0; size < whole.size(); ++size) {
            CAPTURE(size);
            write_file(path, whole, size);
            Journal journal = Journal::open(path, &contents).value();
            const std::size_t records = size < start ? 0 : 1 + (size - start) / each;
            REQUIRE(contents.entries.size() == records);
            const bool at_end = size == 0 || (size >= start && (size - start) % each == 0);
            REQUIRE(contents.torn == !at_end);
            REQUIRE(journal.add(session_record(99)).ok());
            REQUIRE(Journal::open(path, &contents).ok());
            REQUIRE(contents.entries.size() == records + 1);
        }
    }

    TEST_CASE("a changed bit anywhere ends the journal before its record") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("journal");
        JournalContents contents;
        {
            Journal journal = Journal::open(path, &contents).value();
            fill(journal);
        }
        const std::vector<char> whole = read_file(path);
        for (std::size_t place = 0; place < whole.size(); ++place) {
            CAPTURE(place);
            std::vector<char> damaged = whole;
            damaged[place] = static_cast<char>(damaged[place] ^ 0x10);
            const auto parsed = parse_journal(std::as_bytes(std::span(damaged)));
            REQUIRE(parsed.torn);
            REQUIRE(parsed.entries.size() < 4);
        }
    }

    TEST_CASE("rewriting replaces everything and keeps on appending to the new file") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("journal");
        JournalContents contents;
        Journal journal = Journal::open(path, &contents).value();
        fill(journal);
        const auto before = journal.size();
        REQUIRE(journal
                    .rewrite([](JournalSink& sink) {
                        return sink.add(StartRecord{kJournalMagic, 8, 43, kJournalVersion, 0});
                    })
                    .ok());
        CHECK(journal.size() < before);
        REQUIRE(journal.add(session_record(50)).ok());
        REQUIRE(Journal::open(path, &contents).ok());
        CHECK(contents.entries.size() == 2);
        CHECK_FALSE(contents.torn);
    }

    TEST_CASE("a rewrite that fails leaves the old journal in place") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("journal");
        JournalContents contents;
        Journal journal = Journal::open(path, &contents).value();
        fill(journal);
        const auto failed = journal.rewrite([](JournalSink&) -> fabricshm::Result<void> {
            return fabricshm::Error{Errc::kNoMemory, 0, "disk"};
        });
        CHECK(failed.error().code == Errc::kNoMemory);
        REQUIRE(journal.add(session_record(50)).ok());
        REQUIRE(Journal::open(path, &contents).ok());
        CHECK(contents.entries.size() == 5);
    }

    TEST_CASE("another version and records that contradict themselves are refused") {
        JournalContents contents;
        const auto entry = [](auto record) {
            const auto bytes = std::as_bytes(std::span(&record, 1));
            return JournalContents::Entry{decltype(record)::kType, {bytes.begin(), bytes.end()}};
        };
        CHECK(replay(contents).ok());
        contents.entries.push_back(entry(StartRecord{kJournalMagic, 1, 0, kJournalVersion + 1, 0}));
        CHECK(replay(contents).error().code == Errc::kVersion);
        contents.entries[0] = entry(StartRecord{kJournalMagic, 1, 0, kJournalVersion, 0});
        CHECK(replay(contents).ok());
        contents.entries.push_back(entry(SessionEndRecord{5}));
        CHECK(replay(contents).error().code == Errc::kCorrupt);
        contents.entries[1] = entry(ArenaJoinRecord{1, 2});
        CHECK(replay(contents).error().code == Errc::kCorrupt);
        contents.entries[1].type = RecordType::kSessionOpened;  // of the wrong size
        CHECK(replay(contents).error().code == Errc::kCorrupt);
        contents.entries[1].type = static_cast<RecordType>(99);
        CHECK(replay(contents).error().code == Errc::kCorrupt);
    }
}
