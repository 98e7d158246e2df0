// LongWait: names the late rank while another waits, as NCCL's watchdog does; FABRIC_LOG=info.

#pragma once

#include "libfabricshm/base/units.hpp"

namespace fabricshm {

/// What a rank is in the middle of. Kinds are static texts.
struct Doing {
    const char* kind = "operation";
    Bytes bytes = 0;
};

/// From when on a wait is long: far beyond any operation, and soon enough for a person to see it.
inline constexpr Duration kLongWait = std::chrono::seconds(5);

/// One wait, from when it went to sleep to its end. Writes a line when it has lasted `from`, again
/// after twice that, four times that and so on, and one when it ends. Used by one thread; costs
/// nothing before the first line but comparing two times.
class LongWait {
  public:
    LongWait(int rank, int world, Duration from) noexcept
        : rank_(rank), world_(world), began_(Clock::now()), next_(from) {}
    ~LongWait();
    LongWait(const LongWait&) = delete;
    LongWait& operator=(const LongWait&) = delete;

    bool is_due(TimePoint now) const noexcept { return now - began_ >= next_; }
    /// Names `late` and its process, and waits twice as long until it is due again.
    void say(int late, long long process, const Doing& doing, TimePoint now) noexcept;

  private:
    int rank_;
    int world_;
    TimePoint began_;
    Duration next_;
    int late_ = -1;  // named last
};

}  // namespace fabricshm
