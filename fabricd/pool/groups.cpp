#include "fabricd/pool/groups.hpp"

#include <algorithm>

#include "fabricd/pool/refusals.hpp"
#include "fabricd/pool/waits.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/shm/group_block.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

namespace {

Result<void> record_group(const Group& group, JournalSink& sink) {
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

const Group* successor_of(const Arena& arena, GroupId id) {
    for (const auto& [other, group] : arena.groups) {
        if (group.shrunk_from == id) return &group;
    }
    return nullptr;
}

// The group is not in its way when it joins the next one of that name: the leaving of others may be
// on its way still, as after a restart of the daemon.
bool has_left(const Group& group, SessionId session) {
    return group.has(session) && group.live_ranks_of(session) == 0;
}

}  // namespace

Result<std::optional<WaitKey>> Groups::join(Ticket ticket, const proto::Group& request,
                                            TimePoint now, Effects& out) {
    FABRIC_TRY(Arena * arena, books_.arena_written_by(ticket.session, ArenaId{request.arena_id}));
    if (arena->state != ArenaState::kHere) return Error{Errc::kBusy, 0, "arena is not here yet"};
    const std::string name = request.name;
    // Before the name is checked: to the daemon a complete group is in the way of a new one; to a
    // session that asks again it is the answer.
    if (answer_again(*arena, ticket, request, out)) return std::optional<WaitKey>{};
    FABRIC_TRY_VOID(check_name(*arena, name, ticket.session));

    const WaitKey key{WaitKind::kJoin, arena->id, name, GroupId::kNone};
    FABRIC_TRY_VOID(check_forming(key, request));
    const TimePoint deadline =
        fabricshm::deadline_after(now, std::chrono::milliseconds(request.timeout_ms));
    FABRIC_TRY_VOID(add_wait(books_, {ticket, deadline, key, proto::Type::kGroupJoin, request.rank,
                                      request.world, 0, now}));
    const auto joined = static_cast<int>(books_.waits.with_key(key).size());
    if (joined < request.world) return std::optional<WaitKey>{};
    const auto is_free = check_name(*arena, name);
    if (is_free.ok()) return std::optional(key);
    // Those that had left it waited for others than these to leave it, too.
    for (const WaitId id : books_.waits.with_key(key)) {
        fail_wait(books_, id, is_free.error(), out);
    }
    return std::optional<WaitKey>{};
}

void Groups::form(const WaitKey& key, Effects& out) {
    FABRIC_CHECK(key.kind == WaitKind::kJoin);
    const std::vector<WaitId> waiting = books_.waits.with_key(key);
    // A requested number is granted (check_forming() let no two have the same); the others get what
    // is left.
    std::vector<int> wanted;
    for (const WaitId id : waiting) wanted.push_back(books_.waits.get(id).rank);
    const std::vector<int> ranks = assign_ranks(wanted);
    std::vector<WaitId> by_rank(waiting.size());
    for (std::size_t i = 0; i < waiting.size(); ++i) {
        by_rank[static_cast<std::size_t>(ranks[i])] = waiting[i];
    }
    form_group(books_.arena(key.arena), key.name, by_rank, GroupId::kNone, out);
}

Result<void> Groups::check_name(const Arena& arena, const std::string& name,
                                std::optional<SessionId> joins) const {
    const auto named = arena.group_names.find(name);
    if (named != arena.group_names.end()) {
        const Group& group = arena.groups.at(named->second);
        // A broken group keeps its members and its memory, but not its name: a restarted job may
        // meet again before the last survivor of the old one is gone.
        const bool ends = joins && has_left(group, *joins);
        const bool in_the_way = !group.shrunk && !group.broken() && !ends;
        if (in_the_way) {
            return fabricshm::explain({Errc::kExists, 0, "the group is complete"},
                                      "group '%s' of arena '%s' is complete: its ranks leave it "
                                      "first, or a new one takes another name",
                                      name.c_str(), arena.name.c_str());
        }
    }
    // Broken ones count, too: their blocks are still there.
    if (static_cast<int>(arena.groups.size()) >= books_.limits.max_groups_per_arena) {
        return refuse_count("groups of the arena", "arena '" + arena.name + "'", "groups",
                            books_.limits.max_groups_per_arena, "limits.groups_per_arena");
    }
    return {};
}

Result<void> Groups::check_forming(const WaitKey& key, const proto::Group& request) const {
    const char* const arena = books_.arena(key.arena).name.c_str();
    for (const WaitId id : books_.waits.with_key(key)) {
        const Wait& other = books_.waits.get(id);
        if (other.world != request.world) {
            return fabricshm::explain({Errc::kInvalid, 0, "another rank gave another world size"},
                                      "group '%s' of arena '%s' is asked for with %d ranks, by "
                                      "another rank with %d",
                                      key.name.c_str(), arena, request.world, other.world);
        }
        if (request.rank >= 0 && other.rank == request.rank) {
            return fabricshm::explain({Errc::kExists, 0, "the rank is taken"},
                                      "rank %d of group '%s' of arena '%s' has joined already",
                                      request.rank, key.name.c_str(), arena);
        }
    }
    return {};
}

// A daemon that was killed after writing a group down, but before all members had heard of it, is
// asked again by those: they get the answer that was lost.
bool Groups::answer_again(const Arena& arena, Ticket ticket, const proto::Group& request,
                          Effects& out) {
    const auto named = arena.group_names.find(std::string(request.name));
    if (named == arena.group_names.end()) return false;
    const Group& group = arena.groups.at(named->second);
    const bool same = group.recovered && !group.shrunk && group.world() == request.world;
    const auto rank = group.live_rank_of(ticket.session, request.rank);
    if (!same || !rank || (request.rank >= 0 && *rank != request.rank)) return false;
    out.answers.push_back(
        {ticket, proto::Type::kGroupJoin, Error{Errc::kOk, 0, ""}, wire(group, *rank)});
    return true;
}

// Makes the group of those that wait and answers them all.
void Groups::form_group(Arena& arena, const std::string& name, const std::vector<WaitId>& by_rank,
                        GroupId shrunk_from, Effects& out) {
    std::vector<SessionId> sessions;
    for (const WaitId id : by_rank) sessions.push_back(books_.waits.get(id).ticket.session);
    const auto made = make(arena, name, sessions, shrunk_from, out);
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
        // All or none: there is no group of some.
        if (!made.ok()) {
            fail_wait(books_, by_rank[rank], made.error(), out);
            continue;
        }
        const Wait wait = *books_.waits.take(by_rank[rank]);
        out.answers.push_back({wait.ticket, wait.asked, Error{Errc::kOk, 0, ""},
                               wire(*made.value(), static_cast<int>(rank))});
    }
}

// Room for a group block, formatted. Where the hardware lost a page it looks for another place.
Result<std::uint64_t> Groups::place_block(Arena& arena, Bytes bytes,
                                          const fabricshm::GroupBlockInfo& info, Effects& out) {
    for (;;) {
        const auto offset = arena.space.allocate(bytes);
        if (!offset) return growth_.no_room("room for the group block", arena, bytes);
        const Result<void> done = memory_.format_group(arena.id, *offset, info);
        // From now on this host's ranks store there.
        if (done.ok() && books_.caches_apart) arena.files.cached.add(*offset, bytes);
        if (done.ok()) return *offset;
        arena.space.release(*offset, bytes);
        if (done.error().code != Errc::kPoisoned) return done.error();
        losses_.lose(arena, *offset, bytes, out);
    }
}

Result<Group*> Groups::make(Arena& arena, const std::string& name,
                            const std::vector<SessionId>& by_rank, GroupId shrunk_from,
                            Effects& out) {
    Group group;
    group.id = GroupId{books_.next_id()};
    group.arena = arena.id;
    group.name = name;
    group.shrunk_from = shrunk_from;
    for (const SessionId session : by_rank) group.members.push_back({session, MemberState::kLive});
    group.block_bytes = RegionAllocator::rounded(fabricshm::group_block_bytes(group.world()));
    FABRIC_TRY(group.block_offset, place_block(arena, group.block_bytes,
                                               {raw(group.id), raw(group.id), group.world()}, out));
    if (const auto written = record_group(group, journal_); !written.ok()) {
        arena.space.release(group.block_offset, group.block_bytes);
        return written.error();
    }
    FAULT_POINT("group.made");
    // Written down: the group exists from here on, also for a daemon that is killed before the
    // first answer.
    const GroupId id = group.id;
    // The name goes to a shrunk group only if no group was formed under it since its predecessor.
    const auto named = arena.group_names.find(name);
    const bool stolen = shrunk_from != GroupId::kNone && named != arena.group_names.end() &&
                        named->second != shrunk_from;
    if (!stolen) arena.group_names[name] = id;
    Group& made = arena.groups[id] = std::move(group);
    arena.count_danger(made);
    return &made;
}

std::pair<Arena*, Group*> Groups::find(SessionId session, const proto::Group& request) {
    const Session* asking = books_.find_session(session);
    if (asking == nullptr) return {nullptr, nullptr};
    for (const ArenaId id : asking->arenas) {
        Arena* arena = books_.find_arena(id);
        const auto found = arena->groups.find(GroupId{request.group_id});
        if (found != arena->groups.end()) return {arena, &found->second};
    }
    return {nullptr, nullptr};
}

Result<void> Groups::leave(SessionId session, const proto::Group& request, Effects& out) {
    const auto [arena, group] = find(session, request);
    if (group == nullptr) return Error{Errc::kNotFound, 0, "leave group"};
    const auto rank = group->live_rank_of(session, request.rank);
    if (!rank) return Error{Errc::kNotFound, 0, "leave group"};
    for (const WaitId id : books_.waits.with_key({WaitKind::kShrink, arena->id, "", group->id})) {
        if (books_.waits.get(id).rank == *rank)
            fail_wait(books_, id, {Errc::kClosed, 0, "shrink group"}, out);
    }
    set_member(*arena, *group, *rank, MemberState::kLeft);
    after_member_change(*arena, group->id, out);
    return {};
}

Result<void> Groups::shrink(Ticket ticket, const proto::Group& request, TimePoint now,
                            Effects& out) {
    const auto [arena, group] = find(ticket.session, request);
    if (group == nullptr) return Error{Errc::kNotFound, 0, "shrink group"};
    const auto rank = group->live_rank_of(ticket.session, request.rank);
    if (!rank) return Error{Errc::kNotFound, 0, "shrink group"};
    if (arena->state != ArenaState::kHere) return Error{Errc::kBusy, 0, "arena is not here yet"};
    if (group->shrunk) {
        const Group* successor = successor_of(*arena, group->id);
        if (answer_shrink_again(successor, ticket, out)) return {};
        // A rank that took no place in the successor, or gave it up, may ask for another one, which
        // is made when all have given up on this one.
        const bool gave_up =
            successor != nullptr && !successor->shrunk &&
            successor->live_ranks_of(ticket.session) < group->live_ranks_of(ticket.session);
        if (!gave_up) return Error{Errc::kBroken, 0, "the group has been shrunk"};
    }
    const TimePoint deadline =
        fabricshm::deadline_after(now, std::chrono::milliseconds(request.timeout_ms));
    const WaitKey key{WaitKind::kShrink, arena->id, "", group->id};
    for (const WaitId id : books_.waits.with_key(key)) {
        if (books_.waits.get(id).rank == *rank)
            return Error{Errc::kExists, 0, "shrink group twice"};
    }
    Wait wait{ticket, deadline, key, proto::Type::kGroupShrink, *rank, group->world()};
    wait.since = now;
    FABRIC_TRY_VOID(add_wait(books_, std::move(wait)));
    check_shrink(*arena, group->id, out);
    return {};
}

// Again an answer that may have been lost with the daemon.
bool Groups::answer_shrink_again(const Group* successor, Ticket ticket, Effects& out) {
    if (successor == nullptr || !successor->recovered) return false;
    const auto rank = successor->live_rank_of(ticket.session, -1);
    if (!rank) return false;
    out.answers.push_back(
        {ticket, proto::Type::kGroupShrink, Error{Errc::kOk, 0, ""}, wire(*successor, *rank)});
    return true;
}

// Makes the smaller group once every live member has asked for it, and its block has room.
void Groups::check_shrink(Arena& arena, GroupId id, Effects& out) {
    if (!shrink_is_complete(arena, id)) return;
    const int live = arena.groups.at(id).count(MemberState::kLive);
    const auto later = [this, arena_id = arena.id, id](Effects& then) {
        shrink_now(arena_id, id, then);
    };
    const bool parked = growth_.park(arena, fabricshm::group_block_bytes(live), later);
    if (!parked) shrink_now(arena.id, id, out);
}

bool Groups::shrink_is_complete(const Arena& arena, GroupId id) const {
    const auto found = arena.groups.find(id);
    if (found == arena.groups.end() || found->second.shrunk) return false;
    const auto waiting = books_.waits.with_key({WaitKind::kShrink, arena.id, "", id}).size();
    const int live = found->second.count(MemberState::kLive);
    return waiting != 0 && static_cast<int>(waiting) >= live;
}

// Members may have left, died or given up since it was complete.
void Groups::shrink_now(ArenaId arena_id, GroupId id, Effects& out) {
    Arena* const still = books_.find_arena(arena_id);
    if (still == nullptr || !shrink_is_complete(*still, id)) return;
    Arena& arena = *still;
    const auto found = arena.groups.find(id);
    std::vector<WaitId> by_rank = books_.waits.with_key({WaitKind::kShrink, arena.id, "", id});
    std::sort(by_rank.begin(), by_rank.end(), [this](WaitId a, WaitId b) {
        return books_.waits.get(a).rank < books_.waits.get(b).rank;
    });
    const std::size_t before = arena.groups.size();
    form_group(arena, found->second.name, by_rank, id, out);
    if (arena.groups.size() == before) return;  // no room; all have been answered
    Group& group = arena.groups.at(id);
    group.shrunk = true;
    journal_.note(GroupShrunkRecord{raw(arena.id), raw(id)});
    const bool over = arena.count_danger(group);
    // Ranks that still hope to shrink the group before this one once more: the others have gone on.
    const Error gone_on{Errc::kBroken, 0, "the group has been shrunk"};
    for (const WaitId other :
         books_.waits.with_key({WaitKind::kShrink, arena.id, "", group.shrunk_from}))
        fail_wait(books_, other, gone_on, out);
    if (over) sweep(arena, group.sessions(), out);
}

// The group `gone` has ended. If it was made by a shrink and no rank went on from it, the one
// before it may be shrunk again: a rank that dies while the survivors meet must not end the job. In
// the journal the end of `gone` says the same; see image.cpp.
void Groups::reopen_shrink(Arena& arena, const Group& gone, Effects& out) {
    const auto before = arena.groups.find(gone.shrunk_from);
    if (before == arena.groups.end() || gone.shrunk) return;
    before->second.shrunk = false;
    arena.count_danger(before->second);
    check_shrink(arena, before->first, out);
}

void Groups::set_member(Arena& arena, Group& group, int rank, MemberState state) {
    group.members[static_cast<std::size_t>(rank)].state = state;
    journal_.note(GroupMemberRecord{raw(arena.id), raw(group.id), static_cast<std::uint32_t>(rank),
                                    static_cast<std::uint32_t>(state)});
}

void Groups::mark_dead(SessionId session, Arena& arena, bool may_write, Effects& out) {
    if (may_write) arena.dangers.given_up.insert(session);
    const bool was_last =
        !may_write && arena.dangers.given_up.erase(session) != 0 && arena.dangers.given_up.empty();
    for (auto& [id, group] : arena.groups) {
        if (may_write && group.has(session)) group.unfenced.insert(session);
        if (!may_write) group.unfenced.erase(session);
        while (const auto rank = group.live_rank_of(session, -1)) {
            set_member(arena, group, *rank, MemberState::kDead);
            FAULT_POINT("reclaim.mark");
            if (arena.state != ArenaState::kHere) continue;  // done when it is adopted
            memory_.mark_dead(arena.id, group.block_offset, group.world(), *rank);
        }
    }
    std::vector<SessionId> safe;  // perhaps: of groups whose last member this was
    if (was_last) {
        for (const auto& [other, left] : arena.leases.quarantined()) safe.push_back(other);
    }
    for (auto& [id, group] : arena.groups) {
        if (!group.has(session) || !arena.count_danger(group)) continue;
        const auto members = group.sessions();
        safe.insert(safe.end(), members.begin(), members.end());
    }
    if (was_last || !safe.empty()) sweep(arena, safe, out);
}

void Groups::give_up(SessionId session, Arena& arena, Effects& out) {
    mark_dead(session, arena, true, out);
    std::vector<GroupId> touched;
    for (const auto& [id, group] : arena.groups) {
        if (group.has(session)) touched.push_back(id);
    }
    // Survivors may have been waiting for this one alone.
    for (const GroupId id : touched) check_shrink(arena, id, out);
}

void Groups::leave_all(SessionId session, Arena& arena, Effects& out) {
    std::vector<GroupId> touched;
    for (const auto& [id, group] : arena.groups) {
        if (group.has(session)) touched.push_back(id);
    }
    for (const GroupId id : touched) after_member_change(arena, id, out);
}

void Groups::sweep(Arena& arena, const std::vector<SessionId>& members, Effects& out) {
    regions_.sweep_quarantine(arena, members);
    shards_.sweep_all(out);
}

// What a daemon had no time for that was killed after a member's last record: ends of groups which
// no rank is in any more, and regions that were kept for their sake. Nothing would come back to
// them: a rank that left a group has left it, and only the end of a group that failed lets the one
// before it be shrunk again.
void Groups::finish_members(Arena& arena, Effects& out) {
    std::vector<GroupId> over;
    for (const auto& [id, group] : arena.groups) {
        if (group.over()) over.push_back(id);
    }
    for (const GroupId id : over) after_member_change(arena, id, out);
    std::vector<SessionId> dead;
    for (const auto& [session, left] : arena.leases.quarantined()) dead.push_back(session);
    sweep(arena, dead, out);
}

void Groups::settle(Arena& arena, Effects& out) {
    // Deaths that were noticed while there was no daemon, or no memory to write them to.
    for (const auto& [id, group] : arena.groups) {
        for (int rank = 0; rank < group.world(); ++rank) {
            if (group.members[static_cast<std::size_t>(rank)].state != MemberState::kDead) continue;
            memory_.mark_dead(arena.id, group.block_offset, group.world(), rank);
        }
    }
    finish_members(arena, out);
}

// A member left or died: the group may be over, or those that wait to shrink it may be complete.
void Groups::after_member_change(Arena& arena, GroupId id, Effects& out) {
    check_shrink(arena, id, out);
    Group& group = arena.groups.at(id);
    std::vector<SessionId> safe;  // perhaps: from this group nothing is stored any more
    if (arena.count_danger(group)) safe = group.sessions();
    if (group.over()) {
        release_space(arena, group.block_offset, group.block_bytes);
        journal_.note(GroupEndRecord{raw(arena.id), raw(id)});
        const auto named = arena.group_names.find(group.name);
        if (named != arena.group_names.end() && named->second == id) {
            arena.group_names.erase(named);
        }
        const Group gone = std::move(arena.groups.at(id));
        arena.groups.erase(id);
        reopen_shrink(arena, gone, out);
    }
    sweep(arena, safe, out);
}

Result<void> Groups::restore(const ArenaImage& image, Arena& arena) {
    // In id order, so the newest group of a name is the one that keeps it.
    for (const auto& [id, stored] : image.groups) {
        const GroupRecord& record = stored.record;
        const Bytes bytes =
            RegionAllocator::rounded(fabricshm::group_block_bytes(static_cast<int>(record.world)));
        if (!ends_with_zero(record.name) || record.block_bytes != bytes) return kContradiction;
        if (!arena.space.reserve(record.block_offset, bytes)) return kContradiction;
        Group group;
        group.id = id;
        group.arena = arena.id;
        group.name = record.name;
        group.block_offset = record.block_offset;
        group.block_bytes = bytes;
        group.shrunk_from = GroupId{record.shrunk_from};
        group.shrunk = stored.shrunk;
        group.recovered = true;
        for (std::size_t rank = 0; rank < stored.states.size(); ++rank) {
            const Member member{SessionId{record.sessions[rank]},
                                static_cast<MemberState>(stored.states[rank])};
            // A session that leaves the arena has left its groups or is dead in them, and that came
            // first.
            const bool present = arena.sessions.count(member.session) != 0;
            if (member.state == MemberState::kLive && !present) return kContradiction;
            if (present && books_.session(member.session).given_up) {
                group.unfenced.insert(member.session);
            }
            group.members.push_back(member);
        }
        // The daemon may have been killed between the two records of a shrink.
        const auto older = arena.groups.find(group.shrunk_from);
        if (older != arena.groups.end()) {
            older->second.shrunk = true;
            arena.count_danger(older->second);
        }
        arena.group_names[group.name] = id;
        arena.count_danger(arena.groups[id] = std::move(group));
    }
    return {};
}

Result<void> Groups::write(const Arena& arena, JournalSink& sink) {
    for (const auto& [id, group] : arena.groups) {
        FABRIC_TRY_VOID(record_group(group, sink));
        for (int rank = 0; rank < group.world(); ++rank) {
            const MemberState state = group.members[static_cast<std::size_t>(rank)].state;
            // Live is what a group's own record says of all members.
            if (state == MemberState::kLive) continue;
            FABRIC_TRY_VOID(
                sink.add(GroupMemberRecord{raw(arena.id), raw(id), static_cast<std::uint32_t>(rank),
                                           static_cast<std::uint32_t>(state)}));
        }
        if (group.shrunk) FABRIC_TRY_VOID(sink.add(GroupShrunkRecord{raw(arena.id), raw(id)}));
    }
    return {};
}

}  // namespace fabricd
