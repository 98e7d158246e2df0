// Quotas: how much of the pool and of the daemon one user may hold.

#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "fabricd/pool/ids.hpp"
#include "fabricd/pool/journal_records.hpp"
#include "fabricd/pool/limits.hpp"
#include "fabricd/pool/live_quota.hpp"

namespace fabricd {

/// Counts what users hold and refuses what would pass a limit. The check and the charge are one
/// call, so nothing can come between them. Used by the control thread only.
class QuotaTable {
  public:
    explicit QuotaTable(const Limits& limits) : limits_(limits) {}

    Result<void> take_session(std::uint32_t uid);
    void give_session(std::uint32_t uid) noexcept;

    /// For an arena of `bytes` of which `committed` count now, before its memory is made. Refused,
    /// too, when the whole of it would not fit into the user's quota if that were otherwise unused.
    Result<void> take_arena(std::uint32_t uid, Bytes bytes, Bytes committed);
    /// For `bytes` more of an arena, before they are committed; resize_arena() gives them back.
    Result<void> grow_arena(std::uint32_t uid, Bytes bytes);
    Result<void> check_growth(std::uint32_t uid, Bytes bytes) const;
    /// The backend rounded up: what was taken as `from` bytes really is `to`.
    void resize_arena(std::uint32_t uid, Bytes from, Bytes to) noexcept;
    void give_arena(std::uint32_t uid, Bytes bytes) noexcept;

    /// What the journal says was there counts, also when the limits have been lowered since.
    void restore_session(std::uint32_t uid) noexcept { ++users_[uid].sessions, ++sessions_; }
    void restore_arena(std::uint32_t uid, Bytes bytes) noexcept;

    /// Gives one user a quota of its own instead of Limits::user_quota_bytes; see LiveQuota.
    void set_quota(std::uint32_t uid, Bytes bytes, TimePoint now, Duration grace);
    QuotaState quota_of(std::uint32_t uid, TimePoint now) const;
    /// Users whose shrinking came to its end, and to what. See LiveQuota::settle().
    std::vector<std::pair<std::uint32_t, Bytes>> settle(TimePoint now);
    TimePoint next_deadline() const noexcept;
    /// What set_quota() has changed, for the journal.
    std::vector<QuotaRecord> changes() const;
    bool changed() const noexcept { return !own_.empty(); }

    Bytes bytes_of(std::uint32_t uid) const noexcept;
    int sessions() const noexcept { return sessions_; }

  private:
    // Users without sessions and arenas have no entry: a uid that comes once would otherwise stay
    // for the daemon's life.
    struct Usage {
        int sessions = 0;
        int arenas = 0;
        Bytes bytes = 0;
    };
    void forget_if_idle(std::uint32_t uid) noexcept;
    bool admits(std::uint32_t uid, Bytes used, Bytes bytes) const;
    Error refuse_user(std::uint32_t uid, Bytes bytes) const;

    Limits limits_;
    std::map<std::uint32_t, Usage> users_;
    std::map<std::uint32_t, LiveQuota> own_;  // quotas of single users; no limit: kNoLimit
    int sessions_ = 0;
};

}  // namespace fabricd
