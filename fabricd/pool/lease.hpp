// Leases: which session a region belongs to. See docs/failure_model.md.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>

#include "fabricd/pool/ids.hpp"

namespace fabricd {

enum class LeaseState : std::uint32_t {
    kFree = 0,
    kHeld = 1,
    kQuarantined = 2,  // the session is gone, but peers may still be storing into the region
};

/// Plain data. A free lease keeps its epoch: it is what tells the next holder from the last.
struct Lease {
    SessionId session = SessionId::kNone;
    std::uint64_t epoch = 0;  // rises with every grant of the region id: its generation
    LeaseState state = LeaseState::kFree;
};

/// The region ids of one arena. A lease lasts as long as its session and is ended by the daemon
/// alone: there is no expiry to renew, because a dead process is noticed by its pidfd, not by its
/// silence. Used by the control thread only.
class LeaseTable {
  public:
    struct Grant {
        RegionId region;
        std::uint64_t epoch;
    };

    /// Released ids rest until this many are free, and the one that rested longest goes first: who
    /// asks for a region by its id alone shortly after its end finds nothing, not another region.
    static constexpr std::size_t kResting = 256;

    explicit LeaseTable(std::size_t resting = kResting) : resting_(resting) {}

    /// Gives the session a free region id, with a higher epoch than any holder of that id had
    /// before.
    Grant grant(SessionId session);

    /// Ends the lease, held or quarantined; the id may be granted again. False when it is free.
    bool release(RegionId region);

    /// Another session holds it from now on, under the same epoch. False unless it is held.
    bool hand_over(RegionId region, SessionId to);

    /// Keeps the id and its bytes from everybody until release(). False unless it is held.
    bool quarantine(RegionId region);

    /// The lease, also a free one whose epoch counts; nullptr for an id that was never granted.
    const Lease* find(RegionId region) const;

    /// Puts back what the journal says. False when the id is already there.
    bool restore(RegionId region, const Lease& lease);

    /// What one session holds, and what it left in quarantine, in id order. No search: a session's
    /// end must not cost what all others hold.
    const std::set<RegionId>& held_by(SessionId session) const { return listed(held_, session); }
    const std::set<RegionId>& quarantined_of(SessionId session) const {
        return listed(quarantined_, session);
    }
    /// All that is in quarantine, by the session that left it.
    const std::map<SessionId, std::set<RegionId>>& quarantined() const noexcept {
        return quarantined_;
    }

    /// By id, the free ones included.
    const std::map<RegionId, Lease>& all() const noexcept { return leases_; }

  private:
    // A released lease stays here with its epoch: were it erased, the id's next holder would start
    // at 1 again and a peer with an old reference could not tell the difference.
    std::map<RegionId, Lease> leases_;
    // The leases that are not free, by session. Sessions that have none have no entry.
    using BySession = std::map<SessionId, std::set<RegionId>>;
    static const std::set<RegionId>& listed(const BySession& index, SessionId session);
    BySession& index_of(LeaseState state) noexcept;
    static void unlist(BySession& index, SessionId session, RegionId region);
    BySession held_;
    BySession quarantined_;
    std::deque<RegionId> free_;  // the one released first in front
    std::size_t resting_;
};

}  // namespace fabricd
