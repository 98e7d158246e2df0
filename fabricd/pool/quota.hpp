// Quotas: how much of the pool and of the daemon one user may hold.

#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "fabricd/pool/ids.hpp"
#include "fabricd/pool/journal_records.hpp"
#include "fabricd/pool/live_quota.hpp"

namespace fabricd {

/// 0 bytes: no limit but the pool's capacity.
struct Limits {
    Bytes default_arena_bytes = fabricshm::kGiB;
    Bytes max_arena_bytes = 0;  // of one job
    Bytes user_quota_bytes = 0;
    // Counts bound the daemon's own memory and descriptors rather than the pool: a session holds a
    // socket and a pidfd, an arena a descriptor and a mapping.
    int max_sessions = 4096;
    // Beyond these, for root and the daemon's user: a user that fills all others must not keep
    // those out that can do something about it.
    int reserved_sessions = 16;
    std::uint32_t own_uid = 0;
    int max_sessions_per_user = 1024;
    int max_arenas_per_user = 64;
    int max_arenas_per_session = 16;
    int max_regions_per_session = 65536;
    int max_groups_per_arena = 1024;
    int max_waits_per_session = 256;
    // Regions given back in one turn, some 4 ms: others are served before the next ones are.
    int freed_at_once = 1024;
};

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
