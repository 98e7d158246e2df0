#include "fabricd/server/journal_schedule.hpp"

#include <doctest/doctest.h>

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::kMiB;
using fabricshm::TimePoint;

namespace {

constexpr TimePoint kNow{1h};
const auto kFull = [] { return false; };
const auto kRoom = [] { return true; };

}  // namespace

TEST_SUITE("server.journal_schedule") {
    TEST_CASE("a disk that takes nothing is tried after 1 s, 2 s and so on up to a minute") {
        JournalSchedule schedule;
        CHECK(schedule.may_rewrite(kNow, kFull));
        TimePoint now = kNow;
        for (const auto pause : {1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s}) {
            schedule.rewrite_failed(now, false);
            CHECK_FALSE(schedule.may_rewrite(now + pause - 1ms, kFull));
            now += pause;
            CHECK(schedule.may_rewrite(now, kFull));
        }
        schedule.rewritten(kMiB);
        CHECK(schedule.may_rewrite(now, kFull));
        schedule.rewrite_failed(now, false);
        CHECK(schedule.may_rewrite(now + 1s, kFull));
    }

    TEST_CASE("one that has room again is tried at once, looked at once a second") {
        JournalSchedule schedule;
        for (int i = 0; i < 10; ++i) schedule.rewrite_failed(kNow, false);
        int looks = 0;
        const auto count = [&] {
            ++looks;
            return false;
        };
        for (auto now = kNow; now < kNow + 10s; now += 10ms) {
            CHECK_FALSE(schedule.may_rewrite(now, count));
        }
        CHECK(looks == 9);
        CHECK(schedule.may_rewrite(kNow + 10s, kRoom));
    }

    TEST_CASE("what fails although there is room is not tried again for the room's sake") {
        JournalSchedule schedule;
        for (int i = 0; i < 10; ++i) schedule.rewrite_failed(kNow, true);
        CHECK_FALSE(schedule.may_rewrite(kNow + 59s, kRoom));
        CHECK(schedule.may_rewrite(kNow + 60s, kRoom));
    }

    TEST_CASE("a journal is compacted at four times what it was, a MiB at least") {
        JournalSchedule schedule;
        schedule.rewritten(1000);
        CHECK_FALSE(schedule.may_compact(kNow, kMiB - 1));
        CHECK(schedule.may_compact(kNow, kMiB));
        schedule.rewritten(kMiB);
        CHECK_FALSE(schedule.may_compact(kNow, 4 * kMiB - 1));
        CHECK(schedule.may_compact(kNow, 4 * kMiB));
        schedule.put_off_compaction(kNow);
        CHECK_FALSE(schedule.may_compact(kNow + 1s, 4 * kMiB));
        CHECK(schedule.may_compact(kNow + 1min, 4 * kMiB));
    }

    TEST_CASE("room is what the file system says, and none where it can't be asked") {
        CHECK(has_room("/tmp", 0));
        CHECK_FALSE(has_room("/tmp", ~std::uint64_t{0}));
        CHECK_FALSE(has_room("/no/such/folder", 0));
    }
}
