#include "fabricd/server/token_bucket.hpp"

#include <algorithm>

namespace fabricd {

using fabricshm::TimePoint;

TimePoint TokenBucket::take(fabricshm::Bytes bytes, TimePoint now) noexcept {
    if (rate_ <= 0.0) return now;
    const TimePoint begin = std::max(now, full_at_);
    // Never before now: what was not taken in time is lost. A day at most below, since a terabyte
    // at a byte per second would overflow the clock.
    const std::chrono::duration<double> length(static_cast<double>(bytes) / rate_);
    full_at_ =
        fabricshm::deadline_after(begin, std::chrono::duration_cast<fabricshm::Duration>(std::min(
                                             length, std::chrono::duration<double>(3600.0 * 24))));
    return begin;
}

}  // namespace fabricd
