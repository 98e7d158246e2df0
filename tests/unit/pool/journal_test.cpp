#include "fabricd/pool/journal.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>

#include "fabricd/pool/image.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::Result;
using test_support::TemporaryDirectory;

namespace {

using File = std::vector<char>;

File read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

JournalContents parse(const File& file) {
    return parse_journal(std::as_bytes(std::span(file)));
}

SessionRecord session_record(std::uint64_t id) {
    SessionRecord record{};
    record.session = id;
    record.pid = 100;
    return record;
}

Result<void> begin(JournalSink& journal) {
    return journal.add(StartRecord{kJournalMagic, 7, 40, kJournalVersion, 0});
}

/// A start, and the sessions from 41 on.
void fill(Journal& journal, std::uint64_t sessions = 3) {
    REQUIRE(journal.rewrite(begin).ok());
    for (std::uint64_t i = 0; i < sessions; ++i) REQUIRE(journal.add(session_record(41 + i)).ok());
}

struct Fixture {
    explicit Fixture(std::uint64_t sessions = 3) : journal(path) { fill(journal, sessions); }
    TemporaryDirectory directory;
    std::string path = directory.file("journal");
    Journal journal;
};

constexpr std::size_t kStart = sizeof(JournalHead) + sizeof(RecordHeader) + sizeof(StartRecord);
constexpr std::size_t kEach = sizeof(RecordHeader) + sizeof(SessionRecord);

}  // namespace

TEST_SUITE("pool.journal") {
    TEST_CASE("what was appended is there when it is read, and the rewritten file goes on") {
        Fixture fixture;
        JournalContents contents = read_journal(fixture.path).value();
        CHECK(contents.entries.size() == 4);
        CHECK(contents.unfinished_bytes == 0);
        CHECK_FALSE(contents.damage);
        REQUIRE(fixture.journal.add(SessionEndRecord{41}).ok());
        contents = read_journal(fixture.path).value();
        const PoolImage image = replay(contents).value();
        CHECK(image.daemon_epoch == 7);
        CHECK(image.last_id == 43);
        CHECK(image.sessions.size() == 2);
    }

    TEST_CASE("no file is an empty journal, and nothing is made before the first rewrite") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("journal");
        CHECK(replay(read_journal(path).value()).ok());
        Journal journal(path);
        CHECK(journal.add(SessionEndRecord{41}).error().code == Errc::kClosed);
        CHECK_FALSE(std::filesystem::exists(path));
    }

    TEST_CASE("cut off in any byte of a record that was being written, it keeps all before it") {
        Fixture fixture;
        const File before = read_file(fixture.path);
        REQUIRE(fixture.journal.add(session_record(99)).ok());
        const File after = read_file(fixture.path);
        REQUIRE(after.size() == before.size() + kEach);
        // As a kill leaves it: the record is there in part or whole, and the head is the old one.
        for (std::size_t there = 0; there <= kEach; ++there) {
            File killed = before;
            const auto from = after.begin() + static_cast<std::ptrdiff_t>(before.size());
            killed.insert(killed.end(), from, from + static_cast<std::ptrdiff_t>(there));
            const JournalContents contents = parse(killed);
            REQUIRE_FALSE(contents.damage);
            REQUIRE(contents.entries.size() == 4);
            REQUIRE(contents.unfinished_bytes == there);
        }
    }

    TEST_CASE("a flipped bit in any byte is found") {
        Fixture fixture(100);
        const File whole = read_file(fixture.path);
        std::size_t found = 0;
        for (std::size_t place = 0; place < whole.size(); ++place) {
            File damaged = whole;
            damaged[place] = static_cast<char>(damaged[place] ^ (1 << place % 8));
            const JournalContents contents = parse(damaged);
            if (!contents.damage || replay(contents).ok()) break;
            // What it says of the damage is where it is, or the record around it.
            const std::size_t records = place < sizeof(JournalHead) ? 0 : 101;
            if (contents.damage->at > place || contents.damage->records != records) break;
            ++found;
        }
        CHECK(found == whole.size());
    }

    TEST_CASE("a file that is cut at any length is found") {
        Fixture fixture(100);
        const File whole = read_file(fixture.path);
        std::size_t found = 0;
        for (std::size_t size = 0; size < whole.size(); ++size) {
            const File cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
            const JournalContents contents = parse(cut);
            if (!contents.damage || contents.damage->bytes != size) break;
            const std::size_t whole_records = size < kStart ? 0 : 1 + (size - kStart) / kEach;
            if (contents.damage->records_read != whole_records) break;
            ++found;
        }
        CHECK(found == whole.size());
    }

    TEST_CASE("a record that is left out, doubled or exchanged with another one is found") {
        Fixture fixture(100);
        const File whole = read_file(fixture.path);
        const auto record = [&](std::size_t i) {
            return whole.begin() + static_cast<std::ptrdiff_t>(kStart + i * kEach);
        };
        for (std::size_t i = 0; i < 100; ++i) {
            CAPTURE(i);
            File without = whole;
            const auto at = static_cast<std::ptrdiff_t>(kStart + i * kEach);
            without.erase(without.begin() + at, without.begin() + at + kEach);
            REQUIRE(parse(without).damage);
            File twice = whole;
            twice.insert(twice.begin() + at, record(i), record(i) + kEach);
            // The last one, once more, lies behind the end: it does not count.
            const JournalContents doubled = parse(twice);
            REQUIRE((doubled.damage || (i == 99 && doubled.entries.size() == 101)));
            File exchanged = whole;
            const std::size_t other = (i + 1) % 100;
            std::copy(record(other), record(other) + kEach, exchanged.begin() + at);
            std::copy(record(i), record(i) + kEach,
                      exchanged.begin() + static_cast<std::ptrdiff_t>(kStart + other * kEach));
            REQUIRE(parse(exchanged).damage);
        }
    }

    TEST_CASE("damage is described in words: what, where, and how much of it is lost") {
        Fixture fixture;
        File damaged = read_file(fixture.path);
        damaged[kStart + kEach + 20] ^= 1;
        const std::string size = std::to_string(damaged.size());
        CHECK(describe(*parse(damaged).damage) == "a record does not match its checksum (byte " +
                                                      std::to_string(kStart + kEach) + " of " +
                                                      size + "; 2 of 4 records can't be believed)");
        damaged[0] ^= 1;
        CHECK(describe(*parse(damaged).damage) == "its head is damaged (byte 0 of " + size + ")");
    }

    TEST_CASE("a damaged file shows whether the host was started since") {
        Fixture fixture;
        File damaged = read_file(fixture.path);
        damaged.pop_back();
        const auto bytes = std::as_bytes(std::span(damaged));
        JournalHead head;
        std::memcpy(&head, damaged.data(), sizeof head);
        const std::uint64_t unknown[2] = {0, 0};
        const std::uint64_t other[2] = {1, 2};
        CHECK_FALSE(parse_journal(bytes).damage->other_boot);
        CHECK_FALSE(parse_journal(bytes, unknown).damage->other_boot);
        CHECK(parse_journal(bytes, other).damage->other_boot == (head.boot[0] != 0));
    }

    TEST_CASE("rewriting replaces everything and keeps on appending to the new file") {
        Fixture fixture;
        const auto before = fixture.journal.size();
        REQUIRE(fixture.journal.rewrite(begin).ok());
        CHECK(fixture.journal.size() < before);
        REQUIRE(fixture.journal.add(session_record(50)).ok());
        CHECK(read_file(fixture.path).size() == fixture.journal.size());
        const JournalContents contents = read_journal(fixture.path).value();
        CHECK(contents.entries.size() == 2);
        CHECK(contents.unfinished_bytes == 0);
    }

    TEST_CASE("a rewrite that fails leaves the old journal in place, and no other file") {
        Fixture fixture;
        const auto failed = fixture.journal.rewrite([](JournalSink&) -> Result<void> {
            return fabricshm::Error{Errc::kNoMemory, 0, "disk"};
        });
        CHECK(failed.error().code == Errc::kNoMemory);
        REQUIRE(fixture.journal.add(session_record(50)).ok());
        CHECK(read_journal(fixture.path).value().entries.size() == 5);
        CHECK_FALSE(std::filesystem::exists(fixture.path + ".new"));
    }

    // A limit of the process stands for the disk's: what lies behind it can't be written.
    TEST_CASE("a write that fails half-way is as if it had not been") {
        Fixture fixture;
        const File before = read_file(fixture.path);
        rlimit old{};
        REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
        const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
        rlimit small = old;
        small.rlim_cur = before.size() + kEach / 2;
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
        const std::vector<JournalEntry> release{
            {RecordType::kSessionOpened, std::vector<std::byte>(sizeof(SessionRecord))}};
        const auto granted = fixture.journal.add(session_record(50));
        const auto released = fixture.journal.append_releases(release);
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &old) == 0);
        std::signal(SIGXFSZ, old_handler);
        CHECK(granted.error().code == Errc::kSystem);
        CHECK(granted.error().detail == EFBIG);
        CHECK(released.error().detail == EFBIG);
        JournalContents contents = read_journal(fixture.path).value();
        CHECK_FALSE(contents.damage);
        CHECK(contents.entries.size() == 4);
        REQUIRE(fixture.journal.add(session_record(50)).ok());
        contents = read_journal(fixture.path).value();
        CHECK_FALSE(contents.damage);
        CHECK(contents.entries.size() == 5);
    }

    TEST_CASE("another version and records that contradict themselves are refused") {
        JournalContents contents;
        const auto entry = [](auto record) {
            const auto bytes = std::as_bytes(std::span(&record, 1));
            return JournalEntry{decltype(record)::kType, {bytes.begin(), bytes.end()}};
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

    TEST_CASE("a journal of before there was a head is of another version") {
        Fixture fixture;
        File old = read_file(fixture.path);
        old.erase(old.begin(), old.begin() + sizeof(JournalHead));
        CHECK(replay(parse(old)).error().code == Errc::kVersion);
    }
}
