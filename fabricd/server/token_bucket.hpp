// TokenBucket: how many bytes may be moved now, so that so many per second are moved in all.

#pragma once

#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// Plain arithmetic; time is a parameter. Not thread-safe.
class TokenBucket {
  public:
    /// 0 bytes per second: no limit.
    TokenBucket(fabricshm::Bytes bytes_per_second, fabricshm::TimePoint now) noexcept
        : rate_(static_cast<double>(bytes_per_second)), full_at_(now) {}

    /// Takes `bytes` and says from when on they may be moved: `now`, or later when more was taken
    /// lately than the rate allows. What was not used for a while is not saved up, since it is the
    /// burst that would disturb.
    fabricshm::TimePoint take(fabricshm::Bytes bytes, fabricshm::TimePoint now) noexcept;

  private:
    double rate_;
    fabricshm::TimePoint full_at_;  // when all that was taken is paid for
};

}  // namespace fabricd
