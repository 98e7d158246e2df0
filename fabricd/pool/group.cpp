#include "fabricd/pool/group.hpp"

#include <algorithm>

namespace fabricd {

int Group::count(MemberState state) const noexcept {
    return static_cast<int>(std::count_if(members.begin(), members.end(),
                                          [&](const Member& m) { return m.state == state; }));
}

bool Group::has(SessionId session) const noexcept {
    return std::any_of(members.begin(), members.end(),
                       [&](const Member& m) { return m.session == session; });
}

std::vector<SessionId> Group::sessions() const {
    std::vector<SessionId> all;
    for (const Member& member : members) all.push_back(member.session);
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
}

int Group::live_ranks_of(SessionId session) const noexcept {
    return static_cast<int>(std::count_if(members.begin(), members.end(), [&](const Member& m) {
        return m.session == session && m.state == MemberState::kLive;
    }));
}

bool Group::endangers(SessionId session) const noexcept {
    return is_danger() && has(session);
}

// A session asks by its id, and usually is one rank. With several the hint decides; a hint that is
// not its own rank is ignored, since it comes from a client.
std::optional<int> Group::live_rank_of(SessionId session, int hint) const noexcept {
    std::optional<int> only;
    for (int rank = 0; rank < world(); ++rank) {
        const Member& member = members[static_cast<std::size_t>(rank)];
        if (member.session != session || member.state != MemberState::kLive) continue;
        if (rank == hint) return rank;
        if (!only) only = rank;
    }
    return only;
}

// Given ranks first, so that one that came early without does not get the rank that a later one
// names.
std::vector<int> assign_ranks(const std::vector<int>& wanted) {
    std::vector<bool> taken(wanted.size(), false);
    for (const int rank : wanted) {
        if (rank >= 0) taken[static_cast<std::size_t>(rank)] = true;
    }
    std::vector<int> given;
    for (const int rank : wanted) {
        if (rank >= 0) {
            given.push_back(rank);
            continue;
        }
        const auto lowest = std::find(taken.begin(), taken.end(), false);
        *lowest = true;
        given.push_back(static_cast<int>(lowest - taken.begin()));
    }
    return given;
}

}  // namespace fabricd
