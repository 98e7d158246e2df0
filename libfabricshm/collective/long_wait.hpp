// LongWait: names the late rank while another waits, as NCCL's watchdog does: in the log with
// FABRIC_LOG=info, and to the daemon for `fabricctl waiting`.

#pragma once

#include <algorithm>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/wait_record.hpp"

namespace fabricshm {

/// What a rank is in the middle of. Kinds are static texts.
struct Doing {
    const char* kind = "operation";
    Bytes bytes = 0;
};

/// From when on a wait is long: far beyond any operation, and soon enough for a person to see it.
inline constexpr Duration kLongWait = std::chrono::seconds(5);

/// From when on it is published, for queries.
inline constexpr Duration kShownWait = std::chrono::seconds(2);

/// Where a wait that has become long is shown while it lasts. Thread-safe; never waits for anything
/// but another thread in here.
class WaitScreen {
  public:
    virtual ~WaitScreen() = default;
    /// Shows `record` in place of what is at `place`; -1: at a free place. Where it is now; -1:
    /// nowhere, since all places are taken.
    virtual int show(int place, const WaitRecord& record) noexcept = 0;
    virtual void hide(int place) noexcept = 0;
};

/// For all waits of a group.
struct LongWaits {
    Duration from = kLongWait;     // named in the log
    WaitScreen* screen = nullptr;  // nullptr: shown nowhere. Outlives the group
};

/// One wait, from when it went to sleep to its end. Writes a line when it has lasted `from`, again
/// after twice that, four times that and so on, and one when it ends. On the screen it is from
/// kShownWait on, and renewed every second. Used by one thread; costs nothing before that but
/// comparing two times.
class LongWait {
  public:
    LongWait(int rank, int world, Duration from, WaitScreen* screen = nullptr) noexcept
        : rank_(rank),
          world_(world),
          screen_(screen),
          began_(Clock::now()),
          next_(from),
          next_shown_(std::min<Duration>(from, kShownWait)) {}
    ~LongWait();
    LongWait(const LongWait&) = delete;
    LongWait& operator=(const LongWait&) = delete;

    bool is_due(TimePoint now) const noexcept { return now - began_ >= next_; }
    /// Names `late` and its process, and waits twice as long until it is due again.
    void say(int late, long long process, const Doing& doing, TimePoint now) noexcept;

    bool is_shown_at(TimePoint now) const noexcept {
        return screen_ != nullptr && now - began_ >= next_shown_;
    }
    /// Shows `record`, in which the caller has put the ranks that are late.
    void show(WaitRecord record, const Doing& doing, TimePoint now) noexcept;

  private:
    int rank_;
    int world_;
    WaitScreen* screen_;
    TimePoint began_;
    Duration next_;
    Duration next_shown_;
    int late_ = -1;   // named last
    int place_ = -1;  // on the screen
};

}  // namespace fabricshm
