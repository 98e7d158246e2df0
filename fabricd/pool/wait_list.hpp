// WaitList: requests that are answered later, each with a deadline.

#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fabricd/pool/ids.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

enum class WaitKind : std::uint32_t { kArena, kTensor, kJoin, kShrink, kShard, kCommit };

/// What is waited for. Waits with equal keys are woken together.
struct WaitKey {
    WaitKind kind = WaitKind::kArena;
    ArenaId arena = ArenaId::kNone;
    std::string name;                // kTensor, kJoin, kShard
    GroupId group = GroupId::kNone;  // kShrink
    auto operator<=>(const WaitKey&) const = default;
};

struct Wait {
    Ticket ticket;
    TimePoint deadline;
    WaitKey key;
    fabricshm::proto::Type asked{};  // the request, for the reply's type
    int rank = -1;                   // kJoin: the wanted one, kShrink: the one in the old group
    int world = 0;                   // kJoin
    fabricshm::Bytes bytes = 0;      // kArena: the size asked for, should it have to be made again
    TimePoint since = TimePoint::max();  // kJoin, kShrink: since when
    std::uint32_t flags = 0;             // kArena: as they were asked
    std::string readers = {};            // likewise
};

using WaitId = std::uint64_t;

/// Used by the control thread only; O(log waits) each.
class WaitList {
  public:
    WaitId add(Wait wait);

    /// Takes it out; nothing when it is gone already.
    std::optional<Wait> take(WaitId id);
    const Wait& get(WaitId id) const { return waits_.at(id); }

    template <typename Visit>
    void for_each(Visit visit) const {
        for (const auto& [id, wait] : waits_) visit(wait);
    }

    /// In the order they were added.
    std::vector<WaitId> with_key(const WaitKey& key) const;
    std::vector<WaitId> of(SessionId session) const;
    std::size_t count_of(SessionId session) const;

    /// For how many different things of that kind there are waits.
    std::size_t count_keys(WaitKind kind) const;

    /// One whose deadline is not after `now`; the earliest.
    std::optional<WaitId> expired(TimePoint now) const;

    /// TimePoint::max() when none waits.
    TimePoint next_deadline() const;
    bool empty() const noexcept { return waits_.empty(); }

  private:
    // The waits themselves, and three ways to find them. Ids, not pointers, in the indexes: an
    // answer to one wait may end others, and a stale id is merely not found.
    std::map<WaitId, Wait> waits_;
    std::map<WaitKey, std::set<WaitId>> by_key_;
    std::map<SessionId, std::set<WaitId>> by_session_;
    std::set<std::pair<TimePoint, WaitId>> by_deadline_;
    WaitId last_ = 0;
};

}  // namespace fabricd
