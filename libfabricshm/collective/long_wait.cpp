#include "libfabricshm/collective/long_wait.hpp"

#include "libfabricshm/base/log.hpp"

namespace fabricshm {

namespace {

double seconds(Duration length) noexcept {
    return std::chrono::duration<double>(length).count();
}

}  // namespace

LongWait::~LongWait() {
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

}  // namespace fabricshm
