// JournalSchedule: when the journal is written again. docs/failure_model.md.

#pragma once

#include <functional>
#include <string>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// Writing all records costs the control thread tens of milliseconds, so it is not tried again
/// and again on a disk that cannot take them: after 1 s, 2 s and so on up to a minute, and at once
/// when there is room that was not there before. Used by the control thread only; the caller brings
/// the time.
class JournalSchedule {
  public:
    static constexpr fabricshm::Duration kFirstPause = std::chrono::seconds(1);
    static constexpr fabricshm::Duration kMaxPause = std::chrono::minutes(1);
    /// A look at the disk costs a system call: so often at most.
    static constexpr fabricshm::Duration kLookEvery = std::chrono::seconds(1);

    /// While the journal lacks something. `has_room` looks at the disk.
    bool may_rewrite(fabricshm::TimePoint now, const std::function<bool()>& has_room);
    void rewrite_failed(fabricshm::TimePoint now, bool had_room) noexcept;
    /// By whichever way; it has so many bytes now.
    void rewritten(fabricshm::Bytes size) noexcept;

    /// Of a journal that says all, and has become long.
    bool may_compact(fabricshm::TimePoint now, fabricshm::Bytes size) const noexcept;
    void put_off_compaction(fabricshm::TimePoint now) noexcept;

  private:
    fabricshm::TimePoint next_{};
    fabricshm::TimePoint next_look_{};
    fabricshm::Duration pause_ = kFirstPause;
    bool lacked_room_ = false;  // at the last failure
    fabricshm::TimePoint next_compaction_{};
    fabricshm::Bytes compact_at_ = 0;
};

/// Whether a file system may take so many bytes more: false when it is full or read-only. What else
/// keeps it from taking them (a quota, a fault) shows when they are written.
bool has_room(const std::string& folder, fabricshm::Bytes bytes) noexcept;

}  // namespace fabricd
