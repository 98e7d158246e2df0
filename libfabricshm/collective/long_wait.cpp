#include "libfabricshm/collective/long_wait.hpp"

#include "libfabricshm/base/log.hpp"

namespace fabricshm {

namespace {

// So that a rank that comes while others are still late is not named for long.
constexpr auto kShownEvery = std::chrono::seconds(1);

double seconds(Duration length) noexcept {
    return std::chrono::duration<double>(length).count();
}

}  // namespace

LongWait::~LongWait() {
    if (place_ >= 0) screen_->hide(place_);
    if (late_ < 0) return;
    log(LogLevel::kInfo, "rank %d of %d: the wait for rank %d ended after %.1f s", rank_, world_,
        late_, seconds(Clock::now() - began_));
}

void LongWait::say(int late, long long process, const Doing& doing, TimePoint now) noexcept {
    next_ *= 2;
    if (log_level() > LogLevel::kInfo) return;
    late_ = late;
    log(LogLevel::kInfo,
        "rank %d of %d: has waited %.1f s for rank %d (process %lld) in %s, %llu bytes", rank_,
        world_, seconds(now - began_), late, process, doing.kind,
        static_cast<unsigned long long>(doing.bytes));
}

void LongWait::show(WaitRecord record, const Doing& doing, TimePoint now) noexcept {
    next_shown_ = now - began_ + kShownEvery;
    record.rank = rank_;
    record.world = world_;
    record.began_ns =
        std::chrono::duration_cast<std::chrono::nanoseconds>(began_.time_since_epoch()).count();
    record.bytes = doing.bytes;
    set_kind(record, doing.kind);
    place_ = screen_->show(place_, record);
}

}  // namespace fabricshm
