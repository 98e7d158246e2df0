// LiveQuota: a limit in bytes that changes while it is in use.

#pragma once

#include <optional>

#include "fabricd/pool/ids.hpp"
#include "fabricd/pool/snapshot.hpp"

namespace fabricd {

/// Grows at once. Shrinks in two phases: from the announcement on nothing is granted beyond the
/// target; the limit itself is cut when what is used fits, or at the deadline, and then not below
/// what is used. So no user ever loses memory by it, and a limit that is shown is never exceeded.
class LiveQuota {
  public:
    explicit LiveQuota(Bytes limit = 0) noexcept : limit_(limit) {}

    void set(Bytes wanted, Bytes used, TimePoint now, Duration grace) noexcept;

    /// Ends a shrinking whose time has come. True when it changed anything.
    bool settle(Bytes used, TimePoint now) noexcept;

    /// Whether `bytes` may be granted on top of `used`.
    bool admits(Bytes used, Bytes bytes) const noexcept;

    Bytes limit() const noexcept { return limit_; }
    Bytes target() const noexcept { return target_.value_or(limit_); }
    bool shrinking() const noexcept { return target_.has_value(); }
    /// What was asked for with the target; 0 when nothing is waited for.
    Duration grace() const noexcept { return target_ ? grace_ : Duration::zero(); }
    /// TimePoint::max() when nothing is waited for.
    TimePoint deadline() const noexcept { return target_ ? deadline_ : TimePoint::max(); }

    QuotaState state(Bytes used, TimePoint now) const;

  private:
    Bytes limit_;
    std::optional<Bytes> target_;  // below limit_
    TimePoint deadline_;
    Duration grace_ = Duration::zero();
};

}  // namespace fabricd
