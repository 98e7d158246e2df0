// Group: the ranks of a complete group, as the daemon counts them.

#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fabricd/pool/ids.hpp"
#include "fabricd/pool/wait_list.hpp"

namespace fabricd {

enum class MemberState : std::uint32_t { kLive = 0, kLeft = 1, kDead = 2 };

struct Member {
    SessionId session = SessionId::kNone;
    MemberState state = MemberState::kLive;
};

/// Plain data, as Arena. A group is made when the last rank has joined, so its members never
/// become more; a broken one is only left or shrunk.
///
/// The group's id is also its epoch: ids rise, so a group made again under the same name has a
/// higher one.
struct Group {
    GroupId id = GroupId::kNone;
    ArenaId arena = ArenaId::kNone;
    std::string name;
    std::vector<Member> members;  // by rank
    std::uint64_t block_offset = 0;
    Bytes block_bytes = 0;
    GroupId shrunk_from = GroupId::kNone;
    bool shrunk = false;     // its survivors have a new group
    bool recovered = false;  // from the journal: its members may not have seen the reply
    // Dead members on hosts that may still write: nothing of the group is granted while there are
    // any.
    std::set<SessionId> unfenced;
    bool counted = false;  // among the dangers of its members; see Arena::count_danger()

    int world() const noexcept { return static_cast<int>(members.size()); }
    int count(MemberState state) const noexcept;
    /// No member uses it, or will.
    bool over() const noexcept { return count(MemberState::kLive) == 0 && unfenced.empty(); }
    /// Whether members may be storing into the memory of others. Those of a shrunk group are not:
    /// its survivors have all stopped storing when they asked to shrink.
    bool is_danger() const noexcept {
        return !unfenced.empty() || (!shrunk && count(MemberState::kLive) != 0);
    }
    bool broken() const noexcept { return count(MemberState::kDead) != 0; }
    bool has(SessionId session) const noexcept;
    /// Its members' sessions, each once: threads of one may be several ranks.
    std::vector<SessionId> sessions() const;
    /// How many live ranks speak for `session`; more than one when its threads joined as ranks.
    int live_ranks_of(SessionId session) const noexcept;

    /// Peers may still be storing into the memory of this session: it was a member, and not all
    /// others have left or moved on to a smaller group. That a session left properly does not
    /// matter; the others may be a step behind it.
    bool endangers(SessionId session) const noexcept;

    /// The rank of a live member that speaks for `session`: the only one, or `hint` when it has
    /// several (threads that joined as ranks of their own).
    std::optional<int> live_rank_of(SessionId session, int hint) const noexcept;
};

/// Ranks for the joins in the order of their arrival: a wanted rank is kept, -1 gets the lowest
/// one left. All wanted ranks are different and below joins.size().
std::vector<int> assign_ranks(const std::vector<int>& wanted);

}  // namespace fabricd
