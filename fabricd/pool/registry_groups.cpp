// Registry: groups. How ranks meet, leave, die and go on as a smaller group.

#include <algorithm>
#include <cstring>

#include "fabricd/pool/refusals.hpp"
#include "fabricd/pool/registry.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/shm/group_block.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

Result<void> Registry::join_group(Ticket ticket, const proto::Group& request, TimePoint now) {
    FABRIC_TRY(Arena * arena, arena_of(ticket.session, ArenaId{request.arena_id}));
    if (arena->state != ArenaState::kHere) return Error{Errc::kBusy, 0, "arena is not here yet"};
    const std::string name = request.name;
    // Before the name is checked: to the daemon a complete group is in the way of a new one, to who
    // asks again it is the answer.
    if (answer_again(*arena, ticket, request)) return {};
    FABRIC_TRY_VOID(check_name(*arena, name));

    const WaitKey key{WaitKind::kJoin, arena->id, name, GroupId::kNone};
    FABRIC_TRY_VOID(check_forming(key, request));
    const TimePoint deadline =
        fabricshm::deadline_after(now, std::chrono::milliseconds(request.timeout_ms));
    FABRIC_TRY_VOID(add_wait(
        {ticket, deadline, key, proto::Type::kGroupJoin, request.rank, request.world, 0, now}));
    const std::vector<WaitId> waiting = waits_.with_key(key);
    // Whoever comes last has the group formed in the turn of its own request.
    const auto world = static_cast<int>(waiting.size());
    if (world < request.world) return {};
    clear_way(ticket.session, *arena, fabricshm::group_block_bytes(world));

    // A requested number is granted (check_forming() let no two have the same); the others get what
    // is left.
    std::vector<int> wanted;
    for (const WaitId id : waiting) wanted.push_back(waits_.get(id).rank);
    const std::vector<int> ranks = assign_ranks(wanted);
    std::vector<WaitId> by_rank(waiting.size());
    for (std::size_t i = 0; i < waiting.size(); ++i) {
        by_rank[static_cast<std::size_t>(ranks[i])] = waiting[i];
    }
    form_group(*arena, name, by_rank, GroupId::kNone);
    return {};
}

Result<void> Registry::check_name(const Arena& arena, const std::string& name) const {
    const auto named = arena.group_names.find(name);
    if (named != arena.group_names.end()) {
        const Group& group = arena.groups.at(named->second);
        // A broken group keeps its members and its memory, but not its name: a restarted job may
        // meet again before the last survivor of the old one is gone.
        const bool in_the_way = !group.shrunk && !group.broken();
        if (in_the_way) return Error{Errc::kExists, 0, "the group is complete"};
    }
    // Broken ones count, too: their blocks are still there.
    if (static_cast<int>(arena.groups.size()) >= limits_.max_groups_per_arena) {
        return refuse_count("groups of the arena", "arena '" + arena.name + "'", "groups",
                            limits_.max_groups_per_arena, "limits.groups_per_arena");
    }
    return {};
}

Result<void> Registry::check_forming(const WaitKey& key, const proto::Group& request) const {
    for (const WaitId id : waits_.with_key(key)) {
        const Wait& other = waits_.get(id);
        if (other.world != request.world) {
            return Error{Errc::kInvalid, 0, "another rank gave another world size"};
        }
        if (request.rank >= 0 && other.rank == request.rank) {
            return Error{Errc::kExists, 0, "the rank is taken"};
        }
    }
    return {};
}

// A daemon that was killed after writing a group down, but before all members had heard of it, is
// asked again by those: they get the answer that was lost.
bool Registry::answer_again(const Arena& arena, Ticket ticket, const proto::Group& request) {
    const auto named = arena.group_names.find(std::string(request.name));
    if (named == arena.group_names.end()) return false;
    const Group& group = arena.groups.at(named->second);
    const bool same = group.recovered && !group.shrunk && group.world() == request.world;
    const auto rank = group.live_rank_of(ticket.session, request.rank);
    if (!same || !rank || (request.rank >= 0 && *rank != request.rank)) return false;
    answers_.push_back(
        {ticket, proto::Type::kGroupJoin, Error{Errc::kOk, 0, ""}, wire(group, *rank)});
    return true;
}

// Makes the group of those who wait and answers them all.
void Registry::form_group(Arena& arena, const std::string& name, const std::vector<WaitId>& by_rank,
                          GroupId shrunk_from) {
    std::vector<SessionId> sessions;
    for (const WaitId id : by_rank) sessions.push_back(waits_.get(id).ticket.session);
    const auto made = make_group(arena, name, sessions, shrunk_from);
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
        // All or none: there is no group of some.
        if (!made.ok()) {
            fail_wait(by_rank[rank], made.error());
            continue;
        }
        const Wait wait = *waits_.take(by_rank[rank]);
        answers_.push_back({wait.ticket, wait.asked, Error{Errc::kOk, 0, ""},
                            wire(*made.value(), static_cast<int>(rank))});
    }
}

Result<void> Registry::record_group(const Group& group, JournalSink& sink) {
    GroupRecord record{};
    record.arena = raw(group.arena);
    record.group = raw(group.id);
    record.block_offset = group.block_offset;
    record.block_bytes = group.block_bytes;
    record.shrunk_from = raw(group.shrunk_from);
    record.world = static_cast<std::uint32_t>(group.members.size());
    copy_name(record.name, group.name);
    for (std::size_t i = 0; i < group.members.size(); ++i) {
        record.sessions[i] = raw(group.members[i].session);
    }
    // Most groups are small: the members that there are, not room for as many as there can be.
    const std::size_t used =
        offsetof(GroupRecord, sessions) + group.members.size() * sizeof(std::uint64_t);
    return sink.append(GroupRecord::kType, std::as_bytes(std::span(&record, 1)).first(used));
}

// Room for a group block, formatted. Where the hardware lost a page it looks for another place.
Result<std::uint64_t> Registry::place_block(Arena& arena, Bytes bytes,
                                            const fabricshm::GroupBlockInfo& info) {
    for (;;) {
        const auto offset = arena.space.allocate(bytes);
        if (!offset) return no_room("room for the group block", arena, bytes);
        const Result<void> done = memory_->format_group(arena.id, *offset, info);
        if (done.ok()) return *offset;
        arena.space.release(*offset, bytes);
        if (done.error().code != Errc::kPoisoned) return done.error();
        lose(arena, *offset, bytes);
        tell_of_loss(arena, lost_region(arena, *offset, bytes));
    }
}

Result<Group*> Registry::make_group(Arena& arena, const std::string& name,
                                    const std::vector<SessionId>& by_rank, GroupId shrunk_from) {
    Group group;
    group.id = GroupId{next_id()};
    group.arena = arena.id;
    group.name = name;
    group.shrunk_from = shrunk_from;
    for (const SessionId session : by_rank) group.members.push_back({session, MemberState::kLive});
    group.block_bytes = RegionAllocator::rounded(fabricshm::group_block_bytes(group.world()));
    FABRIC_TRY(group.block_offset, place_block(arena, group.block_bytes,
                                               {raw(group.id), raw(group.id), group.world()}));
    if (const auto written = record_group(group, journal_); !written.ok()) {
        arena.space.release(group.block_offset, group.block_bytes);
        return written.error();
    }
    FAULT_POINT("group.made");
    // Written down: the group exists from here on, also for a daemon that is killed before the
    // first answer.
    const GroupId id = group.id;
    // The name goes to a shrunk group only if nobody has met under it since its predecessor.
    const auto named = arena.group_names.find(name);
    const bool stolen = shrunk_from != GroupId::kNone && named != arena.group_names.end() &&
                        named->second != shrunk_from;
    if (!stolen) arena.group_names[name] = id;
    Group& made = arena.groups[id] = std::move(group);
    arena.count_danger(made);
    return &made;
}

std::pair<Arena*, Group*> Registry::find_group(SessionId session, const proto::Group& request) {
    const Session* asking = find_session(session);
    if (asking == nullptr) return {nullptr, nullptr};
    for (const ArenaId id : asking->arenas) {
        Arena* arena = find_arena(id);
        const auto found = arena->groups.find(GroupId{request.group_id});
        if (found != arena->groups.end()) return {arena, &found->second};
    }
    return {nullptr, nullptr};
}

Result<void> Registry::leave_group(SessionId session, const proto::Group& request) {
    const auto [arena, group] = find_group(session, request);
    if (group == nullptr) return Error{Errc::kNotFound, 0, "leave group"};
    const auto rank = group->live_rank_of(session, request.rank);
    if (!rank) return Error{Errc::kNotFound, 0, "leave group"};
    for (const WaitId id : waits_.with_key({WaitKind::kShrink, arena->id, "", group->id})) {
        if (waits_.get(id).rank == *rank) fail_wait(id, {Errc::kClosed, 0, "shrink group"});
    }
    set_member(*arena, *group, *rank, MemberState::kLeft);
    after_member_change(*arena, group->id);
    return {};
}

Result<void> Registry::shrink_group(Ticket ticket, const proto::Group& request, TimePoint now) {
    const auto [arena, group] = find_group(ticket.session, request);
    if (group == nullptr) return Error{Errc::kNotFound, 0, "shrink group"};
    const auto rank = group->live_rank_of(ticket.session, request.rank);
    if (!rank) return Error{Errc::kNotFound, 0, "shrink group"};
    if (arena->state != ArenaState::kHere) return Error{Errc::kBusy, 0, "arena is not here yet"};
    if (group->shrunk) {
        const Group* successor = successor_of(*arena, group->id);
        if (answer_shrink_again(successor, ticket)) return {};
        // Who took no place in the successor, or gave it up, may ask for another one, which is made
        // when all have given up on this one.
        const bool gave_up =
            successor != nullptr && !successor->shrunk &&
            successor->live_ranks_of(ticket.session) < group->live_ranks_of(ticket.session);
        if (!gave_up) return Error{Errc::kBroken, 0, "the group has been shrunk"};
    }
    const TimePoint deadline =
        fabricshm::deadline_after(now, std::chrono::milliseconds(request.timeout_ms));
    const WaitKey key{WaitKind::kShrink, arena->id, "", group->id};
    for (const WaitId id : waits_.with_key(key)) {
        if (waits_.get(id).rank == *rank) return Error{Errc::kExists, 0, "shrink group twice"};
    }
    FABRIC_TRY_VOID(
        add_wait({ticket, deadline, key, proto::Type::kGroupShrink, *rank, group->world()}));
    check_shrink(*arena, group->id);
    return {};
}

const Group* Registry::successor_of(const Arena& arena, GroupId id) {
    for (const auto& [other, group] : arena.groups) {
        if (group.shrunk_from == id) return &group;
    }
    return nullptr;
}

// Again an answer that may have been lost with the daemon.
bool Registry::answer_shrink_again(const Group* successor, Ticket ticket) {
    if (successor == nullptr || !successor->recovered) return false;
    const auto rank = successor->live_rank_of(ticket.session, -1);
    if (!rank) return false;
    answers_.push_back(
        {ticket, proto::Type::kGroupShrink, Error{Errc::kOk, 0, ""}, wire(*successor, *rank)});
    return true;
}

// Makes the smaller group once every live member has asked for it, and its block has room.
void Registry::check_shrink(Arena& arena, GroupId id) {
    if (!shrink_is_complete(arena, id)) return;
    const int live = arena.groups.at(id).count(MemberState::kLive);
    const auto later = [this, arena_id = arena.id, id] { shrink_now(arena_id, id); };
    if (!park(arena, fabricshm::group_block_bytes(live), later)) shrink_now(arena.id, id);
}

bool Registry::shrink_is_complete(const Arena& arena, GroupId id) const {
    const auto found = arena.groups.find(id);
    if (found == arena.groups.end() || found->second.shrunk) return false;
    const auto waiting = waits_.with_key({WaitKind::kShrink, arena.id, "", id}).size();
    const int live = found->second.count(MemberState::kLive);
    return waiting != 0 && static_cast<int>(waiting) >= live;
}

// Members may have left, died or given up since it was complete.
void Registry::shrink_now(ArenaId arena_id, GroupId id) {
    Arena* const still = find_arena(arena_id);
    if (still == nullptr || !shrink_is_complete(*still, id)) return;
    Arena& arena = *still;
    const auto found = arena.groups.find(id);
    std::vector<WaitId> by_rank = waits_.with_key({WaitKind::kShrink, arena.id, "", id});
    std::sort(by_rank.begin(), by_rank.end(),
              [this](WaitId a, WaitId b) { return waits_.get(a).rank < waits_.get(b).rank; });
    const std::size_t before = arena.groups.size();
    form_group(arena, found->second.name, by_rank, id);
    if (arena.groups.size() == before) return;  // no room; all have been told
    Group& group = arena.groups.at(id);
    group.shrunk = true;
    journal_.note(GroupShrunkRecord{raw(arena.id), raw(id)});
    const bool over = arena.count_danger(group);
    // Who still hopes to shrink the group before this one once more: the others have gone on.
    const Error gone_on{Errc::kBroken, 0, "the group has been shrunk"};
    for (const WaitId other : waits_.with_key({WaitKind::kShrink, arena.id, "", group.shrunk_from}))
        fail_wait(other, gone_on);
    if (over) sweep_quarantine(arena, group.sessions());
}

// The group `gone` has ended. If it was made by a shrink and nobody went on from it, the one before
// it may be shrunk again: a rank that dies while the survivors meet must not end the job. In the
// journal the end of `gone` says the same; see image.cpp.
void Registry::reopen_shrink(Arena& arena, const Group& gone) {
    const auto before = arena.groups.find(gone.shrunk_from);
    if (before == arena.groups.end() || gone.shrunk) return;
    before->second.shrunk = false;
    arena.count_danger(before->second);
    check_shrink(arena, before->first);
}

void Registry::set_member(Arena& arena, Group& group, int rank, MemberState state) {
    group.members[static_cast<std::size_t>(rank)].state = state;
    journal_.note(GroupMemberRecord{raw(arena.id), raw(group.id), static_cast<std::uint32_t>(rank),
                                    static_cast<std::uint32_t>(state)});
}

void Registry::mark_members_dead(SessionId session, Arena& arena) {
    for (auto& [id, group] : arena.groups) {
        while (const auto rank = group.live_rank_of(session, -1)) {
            set_member(arena, group, *rank, MemberState::kDead);
            FAULT_POINT("reclaim.mark");
            if (arena.state != ArenaState::kHere) continue;  // done when it is adopted
            memory_->mark_dead(arena.id, group.block_offset, group.world(), *rank);
        }
    }
}

// What a daemon had no time for that was killed after a member's last record: ends of groups which
// nobody is in any more, and regions that were kept for their sake. Nobody would come back to them:
// who left a group has left it, and only the end of a group that failed lets the one before it be
// shrunk again.
void Registry::finish_members(Arena& arena) {
    std::vector<GroupId> over;
    for (const auto& [id, group] : arena.groups) {
        if (group.count(MemberState::kLive) == 0) over.push_back(id);
    }
    for (const GroupId id : over) after_member_change(arena, id);
    std::vector<SessionId> dead;
    for (const auto& [session, left] : arena.leases.quarantined()) dead.push_back(session);
    sweep_quarantine(arena, dead);
}

// A member left or died: the group may be over, or those who wait to shrink it may be complete.
void Registry::after_member_change(Arena& arena, GroupId id) {
    check_shrink(arena, id);
    Group& group = arena.groups.at(id);
    std::vector<SessionId> safe;  // perhaps: from this group nothing is stored any more
    if (arena.count_danger(group)) safe = group.sessions();
    if (group.count(MemberState::kLive) == 0) {
        release_space(arena, group.block_offset, group.block_bytes);
        journal_.note(GroupEndRecord{raw(arena.id), raw(id)});
        const auto named = arena.group_names.find(group.name);
        if (named != arena.group_names.end() && named->second == id) {
            arena.group_names.erase(named);
        }
        const Group gone = std::move(arena.groups.at(id));
        arena.groups.erase(id);
        reopen_shrink(arena, gone);
    }
    sweep_quarantine(arena, safe);
}

}  // namespace fabricd
