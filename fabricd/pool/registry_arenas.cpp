// Registry: arenas. How they are made, opened, presented again after a restart, and dropped.

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "fabricd/pool/refusals.hpp"
#include "fabricd/pool/registry.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/include/fabricshm/fabricshm.h"

namespace fabricd {

namespace proto = fabricshm::proto;

Result<void> Registry::open_arena(Ticket ticket, const proto::ArenaOpen& request) {
    Session* session = find_session(ticket.session);
    if (session == nullptr) return Error{Errc::kClosed, 0, "open arena"};
    const bool has_all = static_cast<int>(session->arenas.size()) >= limits_.max_arenas_per_session;
    if (has_all) {  // it may have closed one
        const std::size_t all = session->arenas.size();
        settle_endings(ArenaId::kNone, [&] { return session->arenas.size() < all; });
    }
    const auto named = arena_names_.find(std::string(request.name));
    if (named == arena_names_.end()) {
        // The memory of their arenas may be what is missing for this one.
        settle_endings(ArenaId::kNone, [] { return false; });
        return make_arena(ticket, request);
    }

    Arena& arena = *find_arena(named->second);
    FABRIC_TRY_VOID(check_open(*session, arena, request));
    // Making takes as long as the memory takes, adoption as long as the grace: both end by
    // themselves, so the wait needs no deadline of its own.
    Wait wait{ticket, TimePoint::max(), WaitKey{WaitKind::kArena, arena.id, "", GroupId::kNone},
              proto::Type::kArenaOpen};
    wait.bytes = request.bytes;
    FABRIC_TRY_VOID(add_wait(std::move(wait)));
    if (arena.state == ArenaState::kHere) {
        // Else when its last session is gone, and it with that one as a rule.
        if (!is_being_left(arena)) answer_waiting(arena, {Errc::kOk, 0, ""});
    } else if (arena.state == ArenaState::kAway && arena.sessions.count(session->id) != 0) {
        // A session presents what it holds before it asks for anything. This one was never given
        // the arena that the books say it has: the daemon was killed before it answered. Should
        // that be so for all of its sessions, a new arena is made now instead of after the grace.
        leave_arena(*session, arena);
    }
    return {};
}

Result<void> Registry::check_open(const Session& session, const Arena& arena,
                                  const proto::ArenaOpen& request) const {
    // Names are one space for all users of a daemon, so that a name taken by another user is told
    // as that, and not as an arena that will never come.
    if (arena.uid != session.peer.uid) {
        return fabricshm::explain({Errc::kDenied, 0, "the arena belongs to another user"},
                                  "arena '%s' belongs to another user; names are one space for all "
                                  "users, take another one",
                                  arena.name.c_str());
    }
    if ((request.flags & FABRICSHM_ARENA_EXCLUSIVE) != 0) {
        return Error{Errc::kExists, 0, "open arena exclusively"};
    }
    const bool one_more = session.arenas.count(arena.id) == 0;
    if (one_more && static_cast<int>(session.arenas.size()) >= limits_.max_arenas_per_session) {
        return refuse_count("arenas of the session", "this session", "arenas",
                            limits_.max_arenas_per_session, "limits.arenas_per_session");
    }
    return {};
}

Result<void> Registry::make_arena(Ticket ticket, const proto::ArenaOpen& request) {
    Session& session = *find_session(ticket.session);
    if (draining_) return refuse_while_draining("new arenas");
    if (static_cast<int>(session.arenas.size()) >= limits_.max_arenas_per_session) {
        return refuse_count("arenas of the session", "this session", "arenas",
                            limits_.max_arenas_per_session, "limits.arenas_per_session");
    }
    const Bytes wanted = request.bytes != 0 ? request.bytes : limits_.default_arena_bytes;
    const Bytes bytes = RegionAllocator::rounded(wanted);
    if (bytes == 0) {  // more than can be counted, and so than any pool has
        return refuse_by_pool({Errc::kNoMemory, 0, "create arena"}, wanted, work_->totals());
    }

    // The number is taken only when nothing can fail any more; see next_id() below.
    const ArenaId id{last_id_ + 1};
    Wait wait{ticket, TimePoint::max(), WaitKey{WaitKind::kArena, id, "", GroupId::kNone},
              proto::Type::kArenaOpen};
    wait.bytes = request.bytes;
    const Bytes committed = commits_whole_ ? bytes : std::min(bytes, fabricshm::kArenaStep);
    FABRIC_TRY_VOID(quotas_.take_arena(session.peer.uid, bytes, committed));
    if (const auto added = add_wait(std::move(wait)); !added.ok()) {
        quotas_.give_arena(session.peer.uid, committed);
        return added;
    }
    next_id();
    Arena& arena = arenas_[id];
    arena.id = id;
    arena.name = request.name;
    arena.uid = session.peer.uid;
    arena.bytes = bytes;
    arena.committed = committed;
    arena_names_[arena.name] = id;
    // Not written down yet: an arena whose making is cut off by a kill was never seen by anybody,
    // and its memory goes with the daemon (devdax: take_leftovers() finds it).
    work_->create(id, arena.name, arena.uid, bytes);
    return {};
}

void Registry::arena_made(ArenaId id, Result<fabricshm::PoolPiece> piece) {
    Arena* arena = find_arena(id);
    if (arena == nullptr) return;
    // The record comes before any answer: who has the descriptor must find a daemon that knows the
    // arena.
    Result<void> done = piece.ok() ? settle(*arena, std::move(piece).value())
                                   : refuse_by_pool(piece.error(), arena->bytes, work_->totals());
    if (done.ok()) done = write_new(*arena);
    answer_waiting(*arena, done.error());
    if (!done.ok()) return remove_arena(id);
    // Everybody who wanted it may have died meanwhile.
    drop_if_unused(id);
}

Result<void> Registry::write_new(const Arena& arena) {
    FABRIC_TRY_VOID(journal_.add(record_of(arena)));
    if (arena.committed == arena.bytes) return {};
    const auto written = journal_.add(ArenaGrownRecord{raw(arena.id), arena.committed});
    // Half of it would be an arena that is committed whole.
    if (!written.ok()) journal_.note(ArenaEndRecord{raw(arena.id)});
    return written;
}

// Takes the memory into the books; the arena is usable afterwards.
Result<void> Registry::settle(Arena& arena, fabricshm::PoolPiece piece) {
    FABRIC_TRY(arena.identity, identity_of(piece.fd));
    FABRIC_TRY_VOID(memory_->add(arena.id, piece));
    if (arena.state == ArenaState::kMaking) {
        const Bytes committed = piece.bytes - piece.uncommitted;
        quotas_.resize_arena(arena.uid, arena.committed, committed);
        arena.bytes = piece.bytes;
        arena.committed = committed;
        arena.space = RegionAllocator(committed);
        FABRIC_TRY_VOID(add_links(arena));
    }
    arena.align = piece.align;
    arena.huge_page_bytes = piece.huge_page_bytes;
    arena.file_offset = piece.file_offset;
    arena.fd = std::move(piece.fd);
    arena.state = ArenaState::kHere;
    return {};
}

// An arena keeps the machine that it was made with, also under a later daemon: its sessions have
// begun with that one.
Result<void> Registry::add_links(Arena& arena) {
    if (links_ == nullptr) return {};
    if (!arena.space.reserve(0, fabricshm::kLinkPageBytes)) {
        return refuse_hole("room for the link page", arena, fabricshm::kLinkPageBytes);
    }
    arena.link_bytes = fabricshm::kLinkPageBytes;
    return memory_->format_links(arena.id, *links_);
}

ArenaRecord Registry::record_of(const Arena& arena) {
    ArenaRecord record{};
    record.arena = raw(arena.id);
    record.bytes = arena.bytes;
    record.align = arena.align;
    record.huge_page_bytes = arena.huge_page_bytes;
    record.file_offset = arena.file_offset;
    record.link_bytes = arena.link_bytes;
    record.device = arena.identity.device;
    record.inode = arena.identity.inode;
    record.file_bytes = arena.identity.bytes;
    record.seals = arena.identity.seals;
    record.uid = arena.uid;
    copy_name(record.name, arena.name);
    return record;
}

// Lets everybody in who waits for the arena, or tells them why not.
void Registry::answer_waiting(Arena& arena, const Error& error) {
    const WaitKey key{WaitKind::kArena, arena.id, "", GroupId::kNone};
    for (const WaitId id : waits_.with_key(key)) {
        // It is leaving, and asks for the name again: when it has left.
        const bool goes_first = is_leaving(waits_.get(id).ticket.session, arena.id);
        if (goes_first && error.code == Errc::kOk) continue;
        const Wait wait = *waits_.take(id);
        Error outcome = error;
        Session* session = find_session(wait.ticket.session);
        if (outcome.code == Errc::kOk) {
            const auto entered = enter_arena(*session, arena);
            if (!entered.ok()) outcome = entered.error();
        }
        answers_.push_back({wait.ticket, wait.asked, outcome, {}, fabricshm::reason_of(outcome)});
        const bool with_body = wait.asked == proto::Type::kArenaOpen && outcome.code == Errc::kOk;
        if (with_body) answers_.back().body = arena.wire();
        if (outcome.code == Errc::kOk) send_losses(wait.ticket.session, arena);
    }
}

Result<void> Registry::enter_arena(Session& session, Arena& arena) {
    if (arena.sessions.count(session.id) != 0) return {};
    FABRIC_TRY_VOID(journal_.add(ArenaJoinRecord{raw(arena.id), raw(session.id)}));
    arena.sessions.insert(session.id);
    session.arenas.insert(arena.id);
    return {};
}

Result<void> Registry::adopt_arena(Ticket ticket, ArenaId id, fabricshm::Fd presented) {
    FABRIC_TRY(Arena * arena, arena_of(ticket.session, id));
    // Looked at here, before the worker has to map anything: a wrong file costs one fstat().
    FABRIC_TRY(const FileIdentity identity, identity_of(presented));
    if (!(identity == arena->identity))
        return Error{Errc::kCorrupt, 0, "adopt arena: another file"};
    FAULT_POINT("adopt.before");
    Wait wait{ticket, TimePoint::max(), WaitKey{WaitKind::kArena, id, "", GroupId::kNone},
              proto::Type::kArenaAdopt};
    FABRIC_TRY_VOID(add_wait(std::move(wait)));
    if (arena->state == ArenaState::kHere) {
        answer_waiting(*arena, {Errc::kOk, 0, ""});
    } else if (!arena->adopting) {
        arena->adopting = true;
        work_->adopt(id, arena->bytes, arena->bytes - arena->committed, std::move(presented));
    }
    return {};
}

void Registry::arena_adopted(ArenaId id, Result<fabricshm::PoolPiece> piece) {
    Arena* arena = find_arena(id);
    if (arena == nullptr) return;
    arena->adopting = false;
    const Result<void> done = piece.ok() ? settle(*arena, std::move(piece).value()) : piece.error();
    FAULT_POINT("adopt.after");
    // Deaths that were noticed while there was no daemon, or no memory to write them to.
    for (const auto& [group_id, group] : arena->groups) {
        for (int rank = 0; done.ok() && rank < group.world(); ++rank) {
            if (group.members[static_cast<std::size_t>(rank)].state != MemberState::kDead) continue;
            memory_->mark_dead(id, group.block_offset, group.world(), rank);
        }
    }
    if (done.ok()) finish_members(*arena);
    if (done.ok()) settle_shards(*arena);
    answer_waiting(*arena, done.error());
    // Who presents it after the grace period is the last that could have: nothing else would ever
    // end the waits of those who ask for its name.
    if (arena->state == ArenaState::kAway && gave_up_on_away_) return abandon_arena(id);
    drop_if_unused(id);
}

Result<bool> Registry::close_arena(Ticket ticket, ArenaId id) {
    const auto begun = leaving_.find({ticket.session, id});
    if (begun != leaving_.end() && !begun->second) {
        begun->second = ticket;  // on its next connection it asks again
        return false;
    }
    FABRIC_TRY(Arena * arena, arena_of(ticket.session, id));
    const bool may_lodge = !shards_.empty();  // else there is nothing to look for
    for (const RegionId region :
         may_lodge ? arena->regions_of(ticket.session) : std::vector<RegionId>{}) {
        const auto& shard = arena->regions.at(region).shard;
        if (shard && shard->first != id) return Error{Errc::kBusy, 0, "a shard was moved here"};
    }
    cancel_waits(ticket.session, id, true);
    begin_leaving(*find_session(ticket.session), *arena);
    slice_left_ = leave_some(ticket.session, id, slice_left_);
    if (!is_leaving(ticket.session, id)) return true;
    leaving_[{ticket.session, id}] = ticket;
    return false;
}

// Returns how many of `most` are left; the arena has been left then.
int Registry::leave_some(SessionId session, ArenaId id, int most) {
    Arena& arena = *find_arena(id);
    most = reclaim_some(*find_session(session), arena, most);
    if (!arena.leases.held_by(session).empty()) {
        leaving_.try_emplace({session, id});
        return 0;
    }
    finish_leaving(*find_session(session), arena);
    return most;
}

bool Registry::is_leaving(SessionId session, ArenaId arena) const {
    return leaving_.count({session, arena}) != 0;
}

// The connection that they were asked on is gone; what was begun goes on.
void Registry::forget_closers(SessionId session) {
    for (auto at = leaving_.lower_bound({session, ArenaId::kNone});
         at != leaving_.end() && at->first.first == session; ++at) {
        at->second.reset();
    }
}

void Registry::answer_closer(SessionId session, ArenaId arena) {
    const auto found = leaving_.find({session, arena});
    if (found == leaving_.end()) return;
    const auto ticket = found->second;
    leaving_.erase(found);
    if (!ticket) return;
    const Answer answer{*ticket, proto::Type::kArenaClose, Error{Errc::kOk, 0, ""}, {}};
    (journal_.behind() ? unwritten_ : answers_).push_back(answer);
}

void Registry::leave_arena(Session& session, Arena& arena) {
    begin_leaving(session, arena);
    (void)reclaim_some(session, arena, std::numeric_limits<int>::max());
    finish_leaving(session, arena);
}

void Registry::begin_leaving(Session& session, Arena& arena) {
    // Deaths first: they decide which regions peers may still be storing into.
    mark_members_dead(session.id, arena);
    std::vector<SessionId> safe;  // perhaps: of groups whose last member this was
    for (auto& [id, group] : arena.groups) {
        if (!group.has(session.id) || !arena.count_danger(group)) continue;
        const auto members = group.sessions();
        safe.insert(safe.end(), members.begin(), members.end());
    }
    if (!safe.empty()) sweep_quarantine(arena, safe);
    leave_shards(session.id, arena.id);
}

void Registry::finish_leaving(Session& session, Arena& arena) {
    const ArenaId id = arena.id;
    std::vector<GroupId> touched;
    for (const auto& [group_id, group] : arena.groups) {
        if (group.has(session.id)) touched.push_back(group_id);
    }
    for (const GroupId group : touched) after_member_change(arena, group);
    // After everything it brought about, so that a crash before this line does it all again.
    arena.sessions.erase(session.id);
    session.arenas.erase(id);
    journal_.note(ArenaLeaveRecord{raw(id), raw(session.id)});
    answer_closer(session.id, id);
    drop_if_unused(id);
    // Sessions that waited for its end, should it have stayed for the sake of something else.
    Arena* const still = find_arena(id);
    const bool opens = still != nullptr && still->state == ArenaState::kHere;
    if (opens && !is_being_left(*still)) answer_waiting(*still, {Errc::kOk, 0, ""});
}

void Registry::drop_if_unused(ArenaId id) {
    const Arena* arena = find_arena(id);
    if (arena == nullptr || !arena->sessions.empty()) return;
    // While the backend works on it nothing is dropped; its answer brings us here again.
    const bool at_work = arena->adopting || arena->growing || arena->copying != 0;
    if (arena->state == ArenaState::kMaking || at_work) return;
    // Nor while a shard of another arena has a copy here: its readers are waited for.
    const bool lodges = !shards_.empty() &&
                        std::any_of(arena->regions.begin(), arena->regions.end(), [&](auto& entry) {
                            return entry.second.shard && entry.second.shard->first != id;
                        });
    if (lodges) return;
    drop_arena(id, "nobody has it open");
}

void Registry::drop_arena(ArenaId id, const char* why) {
    Arena& arena = *find_arena(id);
    fabricshm::log(fabricshm::LogLevel::kInfo, "arena %llu (%s) is dropped: %s", shown(id),
                   arena.name.c_str(), why);
    const std::string name = arena.name;
    const std::vector<Wait> openers = take_openers(arena);
    answer_waiting(arena, {Errc::kBusy, 0, "the arena is being dropped"});
    FAULT_POINT("reclaim.drop");
    journal_.note(ArenaEndRecord{raw(id)});
    const LeftBehind left = forget_shards(id);
    remove_arena(id);
    go_on_without(left);
    for (const Wait& wait : openers) open_again(wait, name);
}

// Who asked for an arena of this name, rather than for this very one, need not hear of its end.
std::vector<Wait> Registry::take_openers(const Arena& arena) {
    std::vector<Wait> openers;
    for (const WaitId id : waits_.with_key({WaitKind::kArena, arena.id, "", GroupId::kNone})) {
        if (waits_.get(id).asked == proto::Type::kArenaOpen) openers.push_back(*waits_.take(id));
    }
    return openers;
}

// The dead holders of an arena may be noticed only after somebody else asked for its name, as after
// a restart of the daemon: that one gets a new arena, as if it had asked a moment later. The first
// of several makes it, the others find it in the making.
void Registry::open_again(const Wait& wait, const std::string& name) {
    proto::ArenaOpen request{};
    copy_name(request.name, name);
    request.bytes = wait.bytes;
    // The first of them: nothing has the name yet.
    const bool made = arena_names_.count(name) != 0;
    const auto asked = made ? open_arena(wait.ticket, request) : make_arena(wait.ticket, request);
    if (!asked.ok()) refuse(wait.ticket, wait.asked, asked);
}

void Registry::remove_arena(ArenaId id) {
    const Arena& arena = *find_arena(id);
    memory_->remove(id);
    work_->destroy(id);
    quotas_.give_arena(arena.uid, arena.committed);
    arena_names_.erase(arena.name);
    freeing_.erase(id);
    auto records = arenas_.extract(id);
    work_->forget(id, std::make_shared<decltype(records)>(std::move(records)));
}

void Registry::give_up_on_away() {
    away_until_ = TimePoint::max();
    gave_up_on_away_ = true;
    forget_recovery();
    std::vector<ArenaId> away;
    for (const auto& [id, arena] : arenas_) {
        if (arena.state == ArenaState::kAway && !arena.adopting) away.push_back(id);
    }
    for (const ArenaId id : away) {
        // One may have gone with another, whose shards it was kept for.
        if (find_arena(id) != nullptr) abandon_arena(id);
    }
}

// Takes an arena that is away from everybody who had it, alive or not. By the one record of its
// end, not one by one: a daemon that was killed in the middle would find an arena that its living
// holders may present, with some of their regions free already.
void Registry::abandon_arena(ArenaId id) {
    Arena& arena = *find_arena(id);
    for (const SessionId member : std::exchange(arena.sessions, {})) {
        cancel_waits(member, id, true);
        Session& session = *find_session(member);
        for (const RegionId region : arena.regions_of(member)) {
            count_region(session, arena.regions.at(region), -1);
        }
        session.arenas.erase(id);
        answer_closer(member, id);
    }
    drop_arena(id, "nobody presented it after the restart");
}

int Registry::descriptor(ArenaId id) const {
    const auto found = arenas_.find(id);
    return found == arenas_.end() ? -1 : found->second.fd.get();
}

}  // namespace fabricd
