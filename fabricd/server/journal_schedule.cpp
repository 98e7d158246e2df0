#include "fabricd/server/journal_schedule.hpp"

#include <sys/statvfs.h>

#include <algorithm>

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Duration;
using fabricshm::TimePoint;

namespace {

// After a compaction that failed.
constexpr Duration kCompactAgain = std::chrono::seconds(10);

}  // namespace

bool JournalSchedule::may_rewrite(TimePoint now, const std::function<bool()>& has_room) {
    if (now >= next_) return true;
    if (!lacked_room_ || now < next_look_) return false;
    next_look_ = fabricshm::deadline_after(now, kLookEvery);
    return has_room();
}

void JournalSchedule::rewrite_failed(TimePoint now, bool had_room) noexcept {
    next_ = fabricshm::deadline_after(now, pause_);
    next_look_ = fabricshm::deadline_after(now, kLookEvery);
    pause_ = std::min<Duration>(2 * pause_, kMaxPause);
    lacked_room_ = !had_room;
}

// Four times the live records: rewriting then costs less than a quarter of the appending. A MiB at
// least, so that a small journal is not rewritten all the time.
void JournalSchedule::rewritten(Bytes size) noexcept {
    next_ = {};
    pause_ = kFirstPause;
    lacked_room_ = false;
    compact_at_ = std::max(4 * size, fabricshm::kMiB);
}

bool JournalSchedule::may_compact(TimePoint now, Bytes size) const noexcept {
    return now >= next_compaction_ && size >= compact_at_;
}

void JournalSchedule::put_off_compaction(TimePoint now) noexcept {
    next_compaction_ = fabricshm::deadline_after(now, kCompactAgain);
}

bool has_room(const std::string& folder, Bytes bytes) noexcept {
    struct statvfs disk {};
    if (::statvfs(folder.c_str(), &disk) != 0) return false;
    return (disk.f_flag & ST_RDONLY) == 0 && Bytes{disk.f_bavail} * disk.f_frsize >= bytes;
}

}  // namespace fabricd
