#include "fabricd/control/journal/decision_journal.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "fabricd/control/journal/decision_record.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "tests/support/decision_values.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;

namespace {

Window window_of(std::uint64_t number) {
    Window window;
    window.number = number;
    window.length_s = 0.1;
    window.jobs.push_back({1, 2, 1, {RankWindow{}}});
    window.jobs[0].ranks[0].loss = std::nan("");
    window.jobs[0].ranks[0].stale = true;
    window.jobs[0].ranks[0].faults = 5;
    window.devices.push_back({"gpu0", 1e9, 0, {{"a", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}});
    window.placement.nodes.push_back({"node0", 1, 3});
    window.placement.shards.push_back({5, 6, 7, 0, {8}});
    window.room = {{{"c", 1, 2, 3, 4, 5, 6, 7, 8}}, 9, 10, 11, 12};
    return window;
}

// What later versions wrote behind the end of a window: two empty lists of the pool, and one of
// three numbers for the one user.
constexpr std::size_t kPoolBytes = 2 * sizeof(std::uint32_t);
constexpr std::size_t kPromiseBytes = sizeof(std::uint32_t) + 3 * sizeof(double);
// One of the faults of the one rank.
constexpr std::size_t kFaultBytes = 2 * sizeof(std::uint32_t);
// One cache, with its name of one letter, and four numbers of the pool.
constexpr std::size_t kCacheBytes = 2 * sizeof(std::uint32_t) + 1 + (8 + 4) * sizeof(double);

Decision decision_of(std::uint64_t id) {
    Decision decision;
    decision.id = id;
    decision.action =
        UnknownAction{{ActionKind::kBatchShares, -1, {"x", ""}, {0.5, 0.5}, {0.1 + 0.2, 0.7}}};
    decision.reason = "because";
    decision.facts = {{"S112", "imbalance", 0.3, "", 1}};
    return decision;
}

void append_text(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::app | std::ios::binary) << text;
}

off_t size_of(const std::string& path) {
    struct ::stat now {};
    return ::stat(path.c_str(), &now) == 0 ? now.st_size : -1;
}

/// Two files: the older one with decision 1 to 3, the newer one with 4 and a window.
void make_both_files(const std::string& path) {
    auto journal = DecisionJournal::open(path, 16 << 10, "a=1\n").value();
    for (std::uint64_t id = 1; id <= 3; ++id) REQUIRE(journal.add(decision_of(id)).ok());
    std::uint64_t number = 0;
    while (size_of(path + ".1") < 0) REQUIRE(journal.add(window_of(++number)).ok());
    REQUIRE(journal.add(decision_of(4)).ok());
}

void fill_with_zeros(const std::string& path) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << std::string(5000, '\0');
}

/// While it lives no file of this process grows beyond so many bytes.
class NoRoom {
  public:
    explicit NoRoom(rlim_t bytes) {
        REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
        const ::rlimit most{bytes, before_.rlim_max};
        signal_ = std::signal(SIGXFSZ, SIG_IGN);
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &most) == 0);
    }
    NoRoom(const NoRoom&) = delete;
    NoRoom& operator=(const NoRoom&) = delete;
    ~NoRoom() {
        (void)::setrlimit(RLIMIT_FSIZE, &before_);
        (void)std::signal(SIGXFSZ, signal_);
    }

  private:
    ::rlimit before_{};
    void (*signal_)(int) = SIG_DFL;
};

}  // namespace

TEST_SUITE("control.journal.decision_journal") {
    TEST_CASE("records come back to the last bit") {
        const auto window = window_from(to_record(window_of(3))).value();
        CHECK(window.number == 3);
        CHECK(std::isnan(window.jobs[0].ranks[0].loss));
        CHECK(window.jobs[0].ranks[0].stale);
        CHECK(window.jobs[0].ranks[0].faults == 5);
        CHECK(window.devices[0].users[0].percent == 9);
        CHECK(window.devices[0].users[0].promised == 10);
        CHECK(window.devices[0].users[0].promised_percent == 11);
        CHECK(window.devices[0].users[0].held_up == 12);
        CHECK(window.placement.shards[0].reads == std::vector<double>{8});
        REQUIRE(window.room.caches.size() == 1);
        CHECK(window.room.caches[0].name == "c");
        CHECK(window.room.caches[0].readers == 8);
        CHECK(window.room.lacked == 12);
        const auto decision = decision_from(to_record(decision_of(4))).value();
        CHECK(after_of(decision) == after_of(decision_of(4)));
        CHECK(names_of(decision) == names_of(decision_of(4)));
        CHECK(decision.facts[0].rank == 1);
        const auto outcome = outcome_from(to_record({4, 9, Outcome::kKept, 1.5, "good"})).value();
        CHECK(outcome.reason == "good");
    }

    TEST_CASE("a record that was cut or lies about its lengths is none") {
        const auto whole = to_record(window_of(1));
        const std::size_t without_caches = whole.size() - kCacheBytes;
        const std::size_t without_faults = without_caches - kFaultBytes;
        const std::size_t without_promises = without_faults - kPromiseBytes;
        const std::size_t without_pool = without_promises - kPoolBytes;
        for (std::size_t size = 0; size < whole.size(); ++size) {
            const bool is_older = size == without_caches || size == without_faults ||
                                  size == without_promises || size == without_pool;
            CHECK(window_from(std::span(whole).first(size)).has_value() == is_older);
        }
        auto longer = whole;
        longer.push_back(std::byte{0});
        CHECK_FALSE(window_from(longer));
        for (std::size_t at = 0; at < whole.size(); ++at) {
            auto wrong = whole;
            wrong[at] = std::byte{0xff};
            (void)window_from(wrong);  // whatever it is, it ends and stays within its bytes
        }
    }

    TEST_CASE("the journal has windows, decisions and what became of them") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        {
            auto journal = DecisionJournal::open(path, 1 << 20, "a=1\n").value();
            REQUIRE(journal.add(window_of(1)).ok());
            REQUIRE(journal.add(decision_of(1)).ok());
            REQUIRE(journal.add(decision_of(2)).ok());
            REQUIRE(journal.add(DecisionOutcome{1, 2, Outcome::kUndone, 5, "worse"}).ok());
        }
        const auto story = read_decision_journal(path).value();
        CHECK(story.starts[0].settings == "a=1\n");
        CHECK(story.windows.size() == 1);
        REQUIRE(story.decisions.size() == 2);
        CHECK(story.decisions[0].outcome == Outcome::kUndone);
        CHECK(story.decisions[0].outcome_reason == "worse");
        CHECK(story.decisions[1].outcome == Outcome::kPending);
        CHECK_FALSE(story.torn);
        struct ::stat file {};
        REQUIRE(::stat(path.c_str(), &file) == 0);
        CHECK((file.st_mode & 0777) == 0600);
    }

    TEST_CASE("numbers go on when windows have pushed the decisions out of the files") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        {
            auto journal = DecisionJournal::open(path, 64 << 10, "a=1\n").value();
            REQUIRE(journal.add(decision_of(7)).ok());
            for (std::uint64_t i = 1; i <= 1000; ++i) REQUIRE(journal.add(window_of(i)).ok());
        }
        const auto story = read_decision_journal(path).value();
        CHECK(story.decisions.empty());
        CHECK(story.last_id == 7);
        CHECK(story.starts[0].settings == "a=1\n");
    }

    TEST_CASE("a window of a daemon that knew no quotas of the pool is read") {
        auto bytes = to_record(window_of(3));
        bytes.resize(bytes.size() - kCacheBytes - kFaultBytes - kPromiseBytes - kPoolBytes);
        const auto window = window_from(bytes);
        REQUIRE(window);
        CHECK(window->placement.shards.size() == 1);
        CHECK(window->jobs[0].ranks[0].faults == 0);
        bytes.pop_back();
        CHECK_FALSE(window_from(bytes));
    }

    TEST_CASE("a torn end is ignored, cut off at the next start, and written over") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        REQUIRE(DecisionJournal::open(path, 1 << 20, "a=1\n").value().add(decision_of(1)).ok());
        const auto whole = size_of(path);
        REQUIRE(DecisionJournal::open(path, 1 << 20, "").value().add(decision_of(2)).ok());
        REQUIRE(::truncate(path.c_str(), size_of(path) - 1) == 0);
        auto story = read_decision_journal(path).value();
        CHECK(story.torn);
        CHECK(story.decisions.size() == 1);
        REQUIRE(DecisionJournal::open(path, 1 << 20, "").value().add(decision_of(3)).ok());
        story = read_decision_journal(path).value();
        CHECK_FALSE(story.torn);
        REQUIRE(story.decisions.size() == 2);
        CHECK(story.decisions[1].id == 3);
        append_text(path, "no frame");
        CHECK(read_decision_journal(path).value().torn);
        CHECK(size_of(path) > whole);
    }

    TEST_CASE("a full journal is rotated, stays within its bound and begins with the settings") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        constexpr fabricshm::Bytes kMaxBytes = 64 << 10;
        auto journal = DecisionJournal::open(path, kMaxBytes, "a=1\n").value();
        for (std::uint64_t i = 1; i <= 1000; ++i) {
            REQUIRE(journal.add(window_of(i)).ok());
            CHECK(journal.size() <= kMaxBytes / 2);
        }
        CHECK(size_of(path) + size_of(path + ".1") <= static_cast<off_t>(kMaxBytes));
        const auto story = read_decision_journal(path).value();
        CHECK(story.starts.size() == 2);
        CHECK_FALSE(story.starts[1].is_daemons);  // the same one goes on
        CHECK(story.windows.back().number == 1000);
        // Nothing is missing in between.
        for (std::size_t i = 1; i < story.windows.size(); ++i) {
            CHECK(story.windows[i].number == story.windows[i - 1].number + 1);
        }
    }

    TEST_CASE("what is no journal is named as bad") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        CHECK(read_decision_journal(path).error().code == fabricshm::Errc::kNotFound);
        append_text(path, "this is some other file, long enough for a header");
        const auto story = read_decision_journal(path).value();
        REQUIRE(story.bad.size() == 1);
        CHECK(story.bad[0].path == path);
        CHECK(story.bad[0].why.code == fabricshm::Errc::kCorrupt);
        CHECK(story.starts.empty());
    }

    TEST_CASE("a daemon killed between two files leaves one that has all") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        make_both_files(path);
        std::filesystem::rename(path, path + ".1");
        const auto story = read_decision_journal(path).value();
        CHECK(story.last_id == 4);
        CHECK(story.bad.empty());
    }

    TEST_CASE("a corrupt file does not take the other one with it") {
        for (const bool is_older : {false, true}) {
            CAPTURE(is_older);
            const test_support::TemporaryDirectory directory;
            const std::string path = directory.path() + "/decisions";
            make_both_files(path);
            const std::string corrupt = is_older ? path + ".1" : path;
            fill_with_zeros(corrupt);
            const auto story = read_decision_journal(path).value();
            REQUIRE(story.bad.size() == 1);
            CHECK(story.bad[0].path == corrupt);
            CHECK(story.last_id == (is_older ? 4 : 3));
            CHECK(story.decisions.size() == (is_older ? 1 : 3));
        }
    }

    TEST_CASE("where a daemon begins differs from where a file does") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        make_both_files(path);
        REQUIRE(DecisionJournal::open(path, 16 << 10, "a=2\n", 4).value().add(window_of(900)).ok());
        const auto story = read_decision_journal(path).value();
        REQUIRE(story.starts.size() == 3);
        CHECK(story.starts[0].is_daemons);
        CHECK_FALSE(story.starts[1].is_daemons);
        CHECK(story.starts[2].is_daemons);
        CHECK(story.starts[2].settings == "a=2\n");
        CHECK(story.starts[2].window == story.windows.size() - 1);
    }

    TEST_CASE("what actuators refused is kept with its window, what failed later is not") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        auto journal = DecisionJournal::open(path, 1 << 20, "a=1\n").value();
        for (std::uint64_t id = 1; id <= 2; ++id) {
            Decision decision = decision_of(id);
            decision.window = id;
            REQUIRE(journal.add(window_of(id)).ok());
            REQUIRE(journal.add(decision).ok());
        }
        REQUIRE(journal.add(DecisionOutcome{2, 2, Outcome::kFailed, 0, "no room"}).ok());
        REQUIRE(journal.add(window_of(3)).ok());
        REQUIRE(journal.add(DecisionOutcome{1, 3, Outcome::kFailed, 0, "did not come"}).ok());
        const auto story = read_decision_journal(path).value();
        REQUIRE(story.failures.size() == 1);
        CHECK(story.failures[0].window == 1);
        CHECK(story.failures[0].decision == 2);
        CHECK(story.failures[0].reason == "no room");
    }

    TEST_CASE("a record that is too large is refused, and the journal goes on") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        auto journal = DecisionJournal::open(path, 64 << 10, "a=1\n").value();
        Window large = window_of(1);
        large.placement.shards.assign(500, large.placement.shards[0]);
        const auto before = journal.size();
        CHECK(journal.add(large).error().code == fabricshm::Errc::kInvalid);
        CHECK(journal.size() == before);
        CHECK(journal.add(window_of(2)).ok());
        CHECK(read_decision_journal(path)->windows.size() == 1);
    }

    TEST_CASE("a file is full when the next record would pass its half, and not before") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        const fabricshm::Bytes head =
            DecisionJournal::open(path + "0", 1 << 20, "a=1\n").value().size();
        const fabricshm::Bytes each = sizeof(FrameHeader) + to_record(window_of(1)).size();
        for (const fabricshm::Bytes spare : {0, 1}) {
            const std::string name = path + std::to_string(1 + spare);
            // Eight windows fit, to the byte; or all but one byte of the last.
            const fabricshm::Bytes half = head + 8 * each - spare;
            auto journal = DecisionJournal::open(name, 2 * half, "a=1\n").value();
            for (std::uint64_t i = 1; i <= 8; ++i) REQUIRE(journal.add(window_of(i)).ok());
            CHECK(size_of(name + ".1") == (spare == 0 ? -1 : off_t(head + 7 * each)));
            CHECK(journal.size() == (spare == 0 ? half : head + each));
        }
    }

    TEST_CASE("a record of an eighth of the journal is written, a larger one is not") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        const fabricshm::Bytes size = to_record(window_of(1)).size();
        auto large = DecisionJournal::open(path, 8 * size, "").value();
        CHECK(large.add(window_of(1)).ok());
        auto small = DecisionJournal::open(path, 8 * size - 1, "").value();
        CHECK(small.add(window_of(1)).error().code == fabricshm::Errc::kInvalid);
    }

    TEST_CASE("a place that cannot be read, and a disk without room, are errors and end") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        std::filesystem::create_directory(path);
        const auto story = read_decision_journal(path).value();
        REQUIRE(story.bad.size() == 1);
        CHECK(story.bad[0].why.code != fabricshm::Errc::kNotFound);
        CHECK_FALSE(DecisionJournal::open(path, 1 << 20, "").ok());

        auto journal = DecisionJournal::open(path + "2", 1 << 20, "a=1\n").value();
        REQUIRE(journal.add(decision_of(1)).ok());
        const auto before = journal.size();
        fabricshm::Result<void> refused;
        {
            const NoRoom no_room(before + 20);
            // As an interrupted call of before leaves it: it says nothing about this one.
            errno = EINTR;
            refused = journal.add(decision_of(2));
        }
        CHECK_FALSE(refused.ok());
        CHECK(journal.size() == before);
        // What was written of it is written over.
        REQUIRE(journal.add(decision_of(3)).ok());
        const auto left = read_decision_journal(path + "2").value();
        CHECK_FALSE(left.torn);
        REQUIRE(left.decisions.size() == 2);
        CHECK(left.decisions[1].id == 3);
    }

    TEST_CASE("frames end where a length, a mark or a byte is wrong, and none is taken twice") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        auto journal = DecisionJournal::open(path, 1 << 20, "").value();
        const auto first = journal.size();
        REQUIRE(journal.add(decision_of(1)).ok());
        std::ifstream file(path, std::ios::binary);
        const std::string text((std::istreambuf_iterator<char>(file)), {});
        const auto whole_of = [](const std::string& bytes, std::size_t* frames) {
            *frames = 0;
            return parse_frames(std::as_bytes(std::span(bytes)),
                                [&](FrameType, std::span<const std::byte>) { ++*frames; });
        };
        std::size_t frames = 0;
        for (std::size_t size = 0; size <= text.size(); ++size) {
            const std::size_t whole = whole_of(text.substr(0, size), &frames);
            const std::size_t wanted = size == text.size() ? 2 : size >= first ? 1 : 0;
            CHECK(frames == wanted);
            CHECK(whole == (wanted == 2 ? text.size() : wanted == 1 ? first : 0));
        }
        for (std::size_t at = first; at < text.size(); ++at) {
            std::string wrong = text;
            wrong[at] = static_cast<char>(wrong[at] ^ 1);
            CHECK(whole_of(wrong, &frames) == first);
            CHECK(frames == 1);
        }
    }

    TEST_CASE("a frame may be empty, and as large as 16 MiB") {
        const auto whole_of = [](std::size_t payload) {
            std::vector<std::byte> bytes(sizeof(FrameHeader) + payload);
            FrameHeader header{kFrameMagic, 0, static_cast<std::uint32_t>(payload), 2, 0};
            std::memcpy(bytes.data(), &header, sizeof header);
            constexpr std::size_t kUnchecked = offsetof(FrameHeader, bytes);
            header.crc = fabricshm::crc32c(bytes.data() + kUnchecked, bytes.size() - kUnchecked);
            std::memcpy(bytes.data(), &header, sizeof header);
            return parse_frames(bytes, [](FrameType, std::span<const std::byte>) {});
        };
        CHECK(whole_of(0) == sizeof(FrameHeader));
        CHECK(whole_of(kFrameBytesMax) == sizeof(FrameHeader) + kFrameBytesMax);
        CHECK(whole_of(kFrameBytesMax + 1) == 0);
    }

    TEST_CASE("the number of the last decision goes on through settings of any text") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        {
            auto journal =
                DecisionJournal::open(path, 1 << 20, "last_decision=99\nb=2\n", 12).value();
            REQUIRE(journal.add(decision_of(5)).ok());
        }
        const auto story = read_decision_journal(path).value();
        CHECK(story.last_id == 12);
        CHECK(story.starts[0].settings == "last_decision=99\nb=2\n");
        CHECK(story.starts[0].window == 0);
    }
}
