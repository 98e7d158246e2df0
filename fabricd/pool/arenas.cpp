#include "fabricd/pool/arenas.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "fabricd/pool/refusals.hpp"
#include "fabricd/pool/waits.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/include/fabricshm/fabricshm.h"

namespace fabricd {

namespace proto = fabricshm::proto;

namespace {

ArenaRecord record_of_arena(const Arena& arena) {
    ArenaRecord record{};
    record.arena = raw(arena.id);
    record.bytes = arena.bytes;
    record.align = arena.align;
    record.huge_page_bytes = arena.huge_page_bytes;
    record.file_offset = arena.files.offset;
    record.link_bytes = arena.link_bytes;
    record.device = arena.identity.device;
    record.inode = arena.identity.inode;
    record.file_bytes = arena.identity.bytes;
    record.seals = arena.identity.seals;
    record.uid = arena.uid;
    copy_name(record.name, arena.name);
    return record;
}

// The daemon's header of a published arena is not the application's.
Bytes with_header(std::uint32_t flags, Bytes bytes) {
    const bool publishes = (flags & proto::kArenaPublish) != 0 && bytes != 0;
    return publishes ? bytes + fabricshm::kPublishedHeaderBytes : bytes;
}

// The grace is over: a client that asks for the same thing again now means a second one.
void forget_recovery(Books& books) {
    for (auto& [arena_id, arena] : books.arenas) {
        for (auto& [id, region] : arena.regions) region.recovered = false;
        for (auto& [id, group] : arena.groups) group.recovered = false;
    }
    for (auto& [id, shard] : books.shards) shard.recovered = false;
}

}  // namespace

Result<void> Arenas::open(Ticket ticket, const proto::ArenaOpen& request, Effects& out) {
    Session* session = books_.find_session(ticket.session);
    if (session == nullptr) return Error{Errc::kClosed, 0, "open arena"};
    const auto named = books_.arena_names.find(std::string(request.name));
    if (named == books_.arena_names.end()) return make(ticket, request);

    Arena& arena = books_.arena(named->second);
    FABRIC_TRY_VOID(check_open(*session, arena, request));
    // Making takes as long as the memory takes, adoption as long as the grace: both end by
    // themselves, so the wait needs no deadline of its own.
    Wait wait{ticket, TimePoint::max(), WaitKey{WaitKind::kArena, arena.id, "", GroupId::kNone},
              proto::Type::kArenaOpen};
    wait.bytes = request.bytes;
    wait.flags = request.flags;
    wait.readers = request.readers;
    FABRIC_TRY_VOID(add_wait(books_, std::move(wait)));
    if (arena.state == ArenaState::kHere) {
        // Else when its last session is gone, and it with that one as a rule.
        if (!books_.is_being_left(arena)) answer_waiting(arena, {Errc::kOk, 0, ""}, out);
    } else if (arena.state == ArenaState::kAway && arena.sessions.count(session->id) != 0) {
        // A session presents what it holds before it asks for anything. This one was never given
        // the arena that it has on record: the daemon was killed before it answered. Should
        // that be so for all of its sessions, a new arena is made now instead of after the grace.
        leave(*session, arena, out);
    }
    return {};
}

Result<void> Arenas::check_open(const Session& session, const Arena& arena,
                                const proto::ArenaOpen& request) const {
    const bool is_public =
        arena.published || (request.flags & (proto::kArenaPublish | proto::kArenaSubscribe)) != 0;
    // Names are one space for all users of a daemon, so that a name taken by another user is
    // refused as that, and not as an arena that will never come.
    if (!is_public && arena.uid != session.peer.uid) {
        return fabricshm::explain({Errc::kDenied, 0, "the arena belongs to another user"},
                                  "arena '%s' belongs to another user; names are one space for all "
                                  "users, take another one",
                                  arena.name.c_str());
    }
    if ((request.flags & FABRICSHM_ARENA_EXCLUSIVE) != 0) {
        return Error{Errc::kExists, 0, "open arena exclusively"};
    }
    if ((request.flags & FABRICSHM_ARENA_LOCAL) != 0 && arena.link_bytes != 0) {
        return fabricshm::explain({Errc::kExists, 0, "open arena"},
                                  "arena '%s' is there, and not in local memory",
                                  arena.name.c_str());
    }
    if (is_public) {
        FABRIC_TRY_VOID(publications_.check_open(session, arena, request.flags,
                                                 with_header(request.flags, request.bytes)));
    }
    // What a stranger to it has there lies elsewhere, and would be read here.
    const bool is_its_own = arena.dangers.strangers.count(session.id) != 0;
    if (!arena.dangers.strangers.empty()) {
        return fabricshm::explain(
            {Errc::kCorrupt, 0, "open arena"},
            "arena '%s': %s has other files mapped than this daemon; it opens again once it is "
            "closed there, or the right device is put back and the daemon started again",
            arena.name.c_str(), is_its_own ? "the session" : "a session");
    }
    const bool one_more = session.arenas.count(arena.id) == 0;
    if (one_more &&
        static_cast<int>(session.arenas.size()) >= books_.limits.max_arenas_per_session) {
        return refuse_count("arenas of the session", "this session", "arenas",
                            books_.limits.max_arenas_per_session, "limits.arenas_per_session");
    }
    return {};
}

Result<void> Arenas::make(Ticket ticket, const proto::ArenaOpen& request) {
    Session& session = books_.session(ticket.session);
    if (books_.draining) return refuse_while_draining("new arenas");
    if (static_cast<int>(session.arenas.size()) >= books_.limits.max_arenas_per_session) {
        return refuse_count("arenas of the session", "this session", "arenas",
                            books_.limits.max_arenas_per_session, "limits.arenas_per_session");
    }
    if ((request.flags & FABRICSHM_ARENA_LOCAL) != 0 && !is_local_) {
        return fabricshm::explain({Errc::kUnsupported, 0, "open arena"},
                                  "this daemon has no memory of the host's own besides its pool");
    }
    FABRIC_TRY_VOID(publications_.check_make(request));
    const Bytes wanted = with_header(
        request.flags, request.bytes != 0 ? request.bytes : books_.limits.default_arena_bytes);
    const Bytes bytes = RegionAllocator::rounded(wanted);
    if (bytes == 0) {  // more than can be counted, and so than any pool has
        return refuse_by_pool({Errc::kNoMemory, 0, "create arena"}, wanted, work_.totals());
    }

    // The number is taken only when nothing can fail any more; see books_.next_id() below.
    const ArenaId id{books_.last_id + 1};
    Wait wait{ticket, TimePoint::max(), WaitKey{WaitKind::kArena, id, "", GroupId::kNone},
              proto::Type::kArenaOpen};
    wait.bytes = request.bytes;
    wait.flags = request.flags;
    wait.readers = request.readers;
    const Bytes committed = commits_whole_ ? bytes : std::min(bytes, fabricshm::kArenaStep);
    FABRIC_TRY_VOID(books_.users.take_arena(session.peer.uid, bytes, committed));
    if (const auto added = add_wait(books_, std::move(wait)); !added.ok()) {
        books_.users.give_arena(session.peer.uid, committed);
        return added;
    }
    books_.next_id();
    Arena& arena = books_.arenas[id];
    arena.id = id;
    arena.name = request.name;
    arena.uid = session.peer.uid;
    arena.bytes = bytes;
    arena.committed = committed;
    const bool is_local = (request.flags & FABRICSHM_ARENA_LOCAL) != 0;
    const bool is_published = (request.flags & proto::kArenaPublish) != 0;
    if (is_published) arena.published.emplace().readers = request.readers;
    // No machine is emulated for memory of the host's own, nor for what other jobs read.
    if (links_ != nullptr && !is_local && !is_published)
        arena.link_bytes = fabricshm::kLinkPageBytes;
    books_.arena_names[arena.name] = id;
    // Not written down yet: an arena whose making is cut off by a kill was never seen by a client,
    // and its memory goes with the daemon (devdax: take_leftovers() finds it).
    work_.create(id, arena.name, arena.uid, bytes);
    return {};
}

void Arenas::made(ArenaId id, Result<fabricshm::PoolPiece> piece, Effects& out) {
    Arena* arena = books_.find_arena(id);
    if (arena == nullptr) return;
    // The record comes before any answer: a client with the descriptor must find a daemon that
    // knows the arena.
    Result<void> done =
        piece.ok() ? settle(*arena, std::move(piece).value()) : Result<void>(piece.error());
    if (!done.ok()) done = refuse_by_pool(done.error(), arena->bytes, work_.totals());
    if (done.ok()) done = write_new(*arena);
    answer_waiting(*arena, done.error(), out);
    if (!done.ok()) return remove(id);
    // All that wanted it may have died meanwhile.
    drop_if_unused(id, out);
}

Result<void> Arenas::write_new(const Arena& arena) {
    FABRIC_TRY_VOID(journal_.add(record_of_arena(arena)));
    Result<void> written;
    if (arena.committed != arena.bytes) {
        written = journal_.add(ArenaGrownRecord{raw(arena.id), arena.committed});
    }
    if (written.ok() && arena.published) written = publications_.write(arena, journal_);
    // Half of it would be an arena that is committed whole, or one that is not published.
    if (!written.ok()) journal_.note(ArenaEndRecord{raw(arena.id)});
    return written;
}

// Takes the memory into the accounts; the arena is usable afterwards.
Result<void> Arenas::settle(Arena& arena, fabricshm::PoolPiece piece) {
    FABRIC_TRY(arena.identity, identity_of(piece.fd));
    FABRIC_TRY_VOID(memory_.add(arena.id, piece));
    const bool is_new = arena.state == ArenaState::kMaking;
    if (is_new) {
        const Bytes committed = piece.bytes - piece.uncommitted;
        books_.users.resize_arena(arena.uid, arena.committed, committed);
        arena.bytes = piece.bytes;
        arena.committed = committed;
        arena.space = RegionAllocator(committed);
        FABRIC_TRY_VOID(add_links(arena));
        if (arena.published && !arena.space.reserve(0, fabricshm::kPublishedHeaderBytes)) {
            return refuse_hole("room for the header", arena, fabricshm::kPublishedHeaderBytes);
        }
    }
    arena.align = piece.align;
    arena.huge_page_bytes = piece.huge_page_bytes;
    arena.files = {piece.file_offset, std::move(piece.fd), std::move(piece.others), piece.stripes,
                   std::move(arena.files.cached)};
    arena.state = ArenaState::kHere;
    return publications_.settle(arena, is_new);
}

// An arena keeps the machine that it was made with, also under a later daemon: its sessions have
// begun with that one.
Result<void> Arenas::add_links(Arena& arena) {
    if (arena.link_bytes == 0) return {};
    if (!arena.space.reserve(0, fabricshm::kLinkPageBytes)) {
        return refuse_hole("room for the link page", arena, fabricshm::kLinkPageBytes);
    }
    return memory_.format_links(arena.id, *links_);
}

// Lets all in that wait for the arena, or answers them why not.
void Arenas::answer_waiting(Arena& arena, const Error& error, Effects& out) {
    const WaitKey key{WaitKind::kArena, arena.id, "", GroupId::kNone};
    for (const WaitId id : books_.waits.with_key(key)) {
        // It is leaving, and asks for the name again: when it has left.
        const bool goes_first = books_.is_leaving(books_.waits.get(id).ticket.session, arena.id);
        if (goes_first && error.code == Errc::kOk) continue;
        const Wait wait = *books_.waits.take(id);
        Error outcome = error;
        if (outcome.code == Errc::kOk) {
            const auto entered = enter(books_.session(wait.ticket.session), arena, wait);
            if (!entered.ok()) outcome = entered.error();
        }
        out.answers.push_back(refusal_to(wait.ticket, wait.asked, outcome));
        const bool with_body = wait.asked == proto::Type::kArenaOpen && outcome.code == Errc::kOk;
        if (with_body) out.answers.back().body = arena.wire();
        if (outcome.code == Errc::kOk) Losses::tell(wait.ticket.session, arena, out);
    }
}

Result<void> Arenas::enter(Session& session, Arena& arena, const Wait& wait) {
    const bool opens = wait.asked == proto::Type::kArenaOpen;
    if (arena.published && opens) {
        // Again: two of them may have waited, and the first is its maker by now.
        const Bytes bytes = with_header(wait.flags, wait.bytes);
        FABRIC_TRY_VOID(publications_.check_open(session, arena, wait.flags, bytes));
        FABRIC_TRY_VOID(publications_.enter(session, arena, wait.flags, wait.readers));
    }
    if (arena.sessions.count(session.id) != 0) return {};
    const auto joined = journal_.add(ArenaJoinRecord{raw(arena.id), raw(session.id)});
    if (!joined.ok()) {
        const bool makes = arena.published && arena.published->maker == session.id;
        if (makes) arena.published->maker = SessionId::kNone;
        return joined;
    }
    arena.sessions.insert(session.id);
    session.arenas.insert(arena.id);
    return {};
}

// Devices after the first: a copy of one has its label, and only the session knows which one it has
// mapped. An arena on several is found in the pool at the start, and so its files are here.
Result<void> Arenas::compare_others(const Arena& arena, const std::vector<fabricshm::Fd>& others) {
    const Error wrong{Errc::kCorrupt, 0, "adopt arena: another file"};
    const std::vector<fabricshm::Fd>& ours = arena.files.others;
    if (others.size() != ours.size()) {
        return fabricshm::explain(wrong, "arena %llu lies on %zu devices, and %zu are presented",
                                  shown(arena.id), ours.size() + 1, others.size() + 1);
    }
    for (std::size_t i = 0; i < ours.size(); ++i) {
        FABRIC_TRY(const FileIdentity presented, identity_of(others[i]));
        FABRIC_TRY(const FileIdentity own, identity_of(ours[i]));
        if (presented == own) continue;
        return fabricshm::explain(wrong,
                                  "device %zu of %zu of the pool is not the one that the session "
                                  "has mapped (pool.dax_devices)",
                                  i + 2, ours.size() + 1);
    }
    return {};
}

// Looked at here, before the worker has to map anything: a wrong file costs one fstat().
Result<void> Arenas::compare(const Arena& arena, const fabricshm::PresentedFiles& presented) {
    if (presented.strange != 0) {
        return fabricshm::explain({Errc::kCorrupt, 0, "adopt arena: another file"},
                                  "file %zu of %zu that the session has mapped is not the pool's "
                                  "(pool.dax_devices)",
                                  presented.strange, arena.files.others.size() + 1);
    }
    FABRIC_TRY(const FileIdentity identity, identity_of(presented.fd));
    if (!(identity == arena.identity)) return Error{Errc::kCorrupt, 0, "adopt arena: another file"};
    return compare_others(arena, presented.others);
}

Result<void> Arenas::adopt(Ticket ticket, ArenaId id, fabricshm::PresentedFiles presented,
                           Effects& out) {
    FABRIC_TRY(Arena * arena, books_.arena_held_by(ticket.session, id));
    const Result<void> same = compare(*arena, presented);
    if (!same.ok()) {
        if (same.error().code == Errc::kCorrupt) arena->dangers.strangers.insert(ticket.session);
        return same;
    }
    arena->dangers.strangers.erase(ticket.session);
    FAULT_POINT("adopt.before");
    Wait wait{ticket, TimePoint::max(), WaitKey{WaitKind::kArena, id, "", GroupId::kNone},
              proto::Type::kArenaAdopt};
    FABRIC_TRY_VOID(add_wait(books_, std::move(wait)));
    if (arena->state == ArenaState::kHere) {
        answer_waiting(*arena, {Errc::kOk, 0, ""}, out);
    } else if (!arena->adopting) {
        if (arena->published) FABRIC_TRY_VOID(Publications::make_writable(presented));
        arena->adopting = true;
        work_.adopt(id, arena->bytes, arena->bytes - arena->committed, std::move(presented));
    }
    return {};
}

void Arenas::adopted(ArenaId id, Result<fabricshm::PoolPiece> piece, Effects& out) {
    Arena* arena = books_.find_arena(id);
    if (arena == nullptr) return;
    arena->adopting = false;
    const Result<void> done = piece.ok() ? settle(*arena, std::move(piece).value()) : piece.error();
    FAULT_POINT("adopt.after");
    if (done.ok()) groups_.settle(*arena, out);
    if (done.ok()) shards_.settle(*arena, out);
    answer_waiting(*arena, done.error(), out);
    // A session that presents it after the grace period is the last that could have: nothing else
    // would ever end the waits of those that ask for its name.
    if (arena->state == ArenaState::kAway && gave_up_on_away_) return abandon(id, out);
    drop_if_unused(id, out);
}

Result<bool> Arenas::close(Ticket ticket, ArenaId id, int& slice, Effects& out) {
    const auto begun = books_.leaving.find({ticket.session, id});
    if (begun != books_.leaving.end() && !begun->second) {
        begun->second = ticket;  // on its next connection it asks again
        return false;
    }
    FABRIC_TRY(Arena * arena, books_.arena_held_by(ticket.session, id));
    const bool may_lodge = !books_.shards.empty();  // else there is nothing to look for
    for (const RegionId region :
         may_lodge ? arena->regions_of(ticket.session) : std::vector<RegionId>{}) {
        const auto& shard = arena->regions.at(region).shard;
        if (shard && shard->first != id) return Error{Errc::kBusy, 0, "a shard was moved here"};
    }
    const bool withdraws = arena->published && arena->published->maker == ticket.session;
    if (withdraws) publications_.withdraw(*arena);
    close_waits(books_, ticket.session, id, out);
    begin_leaving(books_.session(ticket.session), *arena, out);
    slice = leave_some(ticket.session, id, slice, out);
    if (!books_.is_leaving(ticket.session, id)) return true;
    books_.leaving[{ticket.session, id}] = ticket;
    return false;
}

int Arenas::leave_some(SessionId session, ArenaId id, int most, Effects& out) {
    Arena& arena = books_.arena(id);
    most = regions_.reclaim_some(books_.session(session), arena, most);
    if (!arena.leases.held_by(session).empty()) {
        books_.leaving.try_emplace({session, id});
        return 0;
    }
    finish_leaving(books_.session(session), arena, out);
    return most;
}

// The connection that they were asked on is gone; what was begun goes on.
void Arenas::forget_closers(SessionId session) {
    for (auto at = books_.leaving.lower_bound({session, ArenaId::kNone});
         at != books_.leaving.end() && at->first.first == session; ++at) {
        at->second.reset();
    }
}

void Arenas::answer_closer(SessionId session, ArenaId arena, Effects& out) {
    const auto found = books_.leaving.find({session, arena});
    if (found == books_.leaving.end()) return;
    const auto ticket = found->second;
    books_.leaving.erase(found);
    if (!ticket) return;
    out.given_back.push_back({*ticket, proto::Type::kArenaClose, Error{Errc::kOk, 0, ""}, {}});
}

void Arenas::leave(Session& session, Arena& arena, Effects& out) {
    begin_leaving(session, arena, out);
    (void)regions_.reclaim_some(session, arena, std::numeric_limits<int>::max());
    finish_leaving(session, arena, out);
}

void Arenas::begin_leaving(Session& session, Arena& arena, Effects& out) {
    // A process that was killed may have stored anywhere, whosever region it was.
    if (books_.caches_apart && !session.peer.is_remote()) arena.files.cached.add(0, arena.bytes);
    // Deaths first: they decide which regions peers may still be storing into.
    groups_.mark_dead(session.id, arena, false, out);
    shards_.leave(session.id, arena.id, out);
}

void Arenas::give_up(Session& session, Arena& arena, Effects& out) {
    groups_.give_up(session.id, arena, out);
}

void Arenas::finish_leaving(Session& session, Arena& arena, Effects& out) {
    FABRIC_CHECK(arena.leases.held_by(session.id).empty());
    const ArenaId id = arena.id;
    groups_.leave_all(session.id, arena, out);
    // After everything it brought about, so that a crash before this line does it all again.
    publications_.leave(session, arena);
    arena.sessions.erase(session.id);
    arena.dangers.strangers.erase(session.id);
    session.arenas.erase(id);
    journal_.note(ArenaLeaveRecord{raw(id), raw(session.id)});
    answer_closer(session.id, id, out);
    drop_if_unused(id, out);
    // Sessions that waited for its end, should it have stayed for the sake of something else.
    Arena* const still = books_.find_arena(id);
    const bool opens = still != nullptr && still->state == ArenaState::kHere;
    if (opens && !books_.is_being_left(*still)) answer_waiting(*still, {Errc::kOk, 0, ""}, out);
}

void Arenas::drop_if_unused(ArenaId id, Effects& out) {
    const Arena* arena = books_.find_arena(id);
    if (arena == nullptr || !arena->sessions.empty()) return;
    // While the backend works on it nothing is dropped; its answer brings us here again.
    const bool releases = arena->published && arena->published->elastic.releasing != 0;
    const bool grows = arena->growing != Growing::kNot;
    const bool at_work = arena->adopting || grows || releases || arena->copying != 0;
    if (arena->state == ArenaState::kMaking || at_work) return;
    // Nor while a shard of another arena has a copy here: its readers are waited for.
    const bool lodges = !books_.shards.empty() &&
                        std::any_of(arena->regions.begin(), arena->regions.end(), [&](auto& entry) {
                            return entry.second.shard && entry.second.shard->first != id;
                        });
    if (lodges) return;
    // Nor while a process may be reading whose session was given up.
    const bool is_read = arena->published && !arena->published->pages.empty();
    if (is_read && arena->state == ArenaState::kHere) return;
    drop(id, "no session has it open", out);
}

void Arenas::drop(ArenaId id, const char* why, Effects& out) {
    Arena& arena = books_.arena(id);
    fabricshm::log(fabricshm::LogLevel::kInfo, "arena %llu (%s) is dropped: %s", shown(id),
                   arena.name.c_str(), why);
    const std::string name = arena.name;
    const std::vector<Wait> openers = take_openers(arena);
    answer_waiting(arena, {Errc::kBusy, 0, "the arena is being dropped"}, out);
    FAULT_POINT("reclaim.drop");
    journal_.note(ArenaEndRecord{raw(id)});
    const std::vector<ShardId> lost_a_copy = shards_.forget(id, out);
    remove(id);
    shards_.go_on_without(lost_a_copy, out);
    for (const Wait& wait : openers) out.reopen.push_back({wait, name});
}

// A client that asked for an arena of this name, rather than for this very one, need not hear of
// its end.
std::vector<Wait> Arenas::take_openers(const Arena& arena) {
    std::vector<Wait> openers;
    for (const WaitId id :
         books_.waits.with_key({WaitKind::kArena, arena.id, "", GroupId::kNone})) {
        // One that publishes or subscribes asked for this very one.
        const Wait& wait = books_.waits.get(id);
        const bool any = (wait.flags & (proto::kArenaPublish | proto::kArenaSubscribe)) == 0;
        if (wait.asked == proto::Type::kArenaOpen && any) openers.push_back(*books_.waits.take(id));
    }
    return openers;
}

void Arenas::remove(ArenaId id) {
    const Arena& arena = books_.arena(id);
    publications_.forget(arena);
    memory_.remove(id);
    work_.destroy(id);
    books_.users.give_arena(arena.uid, arena.committed);
    books_.arena_names.erase(arena.name);
    books_.freeing.erase(id);
    auto records = books_.arenas.extract(id);
    work_.forget(id, std::make_shared<decltype(records)>(std::move(records)));
}

void Arenas::give_up_on_away(Effects& out) {
    away_until_ = TimePoint::max();
    gave_up_on_away_ = true;
    forget_recovery(books_);
    std::vector<ArenaId> away;
    for (const auto& [id, arena] : books_.arenas) {
        if (arena.state == ArenaState::kAway && !arena.adopting) away.push_back(id);
    }
    for (const ArenaId id : away) {
        // One may have gone with another, whose shards it was kept for.
        if (books_.find_arena(id) != nullptr) abandon(id, out);
    }
}

// Takes an arena that is away from all that had it, alive or not. By the one record of its
// end, not one by one: a daemon that was killed in the middle would find an arena that its living
// holders may present, with some of their regions free already.
void Arenas::abandon(ArenaId id, Effects& out) {
    Arena& arena = books_.arena(id);
    // No other can take it up.
    if (arena.published) arena.published->maker = SessionId::kNone;
    for (const SessionId member : std::exchange(arena.sessions, {})) {
        close_waits(books_, member, id, out);
        Session& session = books_.session(member);
        for (const RegionId region : arena.regions_of(member)) {
            regions_.count(session, arena.regions.at(region), -1);
        }
        session.arenas.erase(id);
        answer_closer(member, id, out);
    }
    drop(id, "no session presented it after the restart", out);
}

Result<void> Arenas::restore(const ArenaImage& image) {
    const ArenaRecord& record = image.record;
    if (!ends_with_zero(record.name)) return kContradiction;
    const ArenaId id{record.arena};
    Arena& arena = books_.arenas[id];
    arena.id = id;
    arena.name = record.name;
    arena.uid = record.uid;
    // Until a session presents its file.
    arena.state = ArenaState::kAway;
    arena.bytes = record.bytes;
    arena.align = record.align;
    arena.huge_page_bytes = record.huge_page_bytes;
    arena.files.offset = record.file_offset;
    arena.identity = {record.device, record.inode, record.file_bytes, record.seals};
    arena.link_bytes = record.link_bytes;
    arena.committed = image.committed.value_or(record.bytes);
    // What the daemon of before had written out is not known.
    if (books_.caches_apart) arena.files.cached.add(0, arena.bytes);
    arena.space = RegionAllocator(arena.committed);
    // At the start of the arena.
    if (record.link_bytes != 0 && !arena.space.reserve(0, record.link_bytes)) return kContradiction;
    // Two arenas of one name: one of them must have ended without a record.
    if (!books_.arena_names.emplace(arena.name, id).second) return kContradiction;
    books_.users.restore_arena(arena.uid, arena.committed);
    for (const SessionId member : image.sessions) {
        // A session whose end was written down before its last arena was left does not exist.
        Session* session = books_.find_session(member);
        if (session == nullptr) return kContradiction;
        arena.sessions.insert(member);
        if (books_.session(member).given_up) arena.dangers.given_up.insert(member);
        session->arenas.insert(id);
    }
    FABRIC_TRY_VOID(publications_.restore(image, arena));
    FABRIC_TRY_VOID(regions_.restore(image, arena));
    FABRIC_TRY_VOID(groups_.restore(image, arena));
    // After it is known what is held: what of it is free is taken, the rest when it comes back.
    for (const LostRecord& lost : image.lost) {
        const bool inside = lost.offset <= arena.bytes && lost.bytes <= arena.bytes - lost.offset;
        const bool on_units = lost.offset % RegionAllocator::kUnit == 0 &&
                              lost.bytes % RegionAllocator::kUnit == 0 && lost.bytes != 0;
        if (!inside || !on_units) return kContradiction;
        take_lost(arena, lost.offset, lost.bytes);
    }
    return {};
}

// Their pages exist, whenever their sessions come back: nothing else may be granted in their place.
void Arenas::expect_all() {
    for (const auto& [id, arena] : books_.arenas) work_.expect(id, arena.committed);
}

Result<void> Arenas::write(const Arena& arena, JournalSink& sink) const {
    // The arena before what lies in it.
    FABRIC_TRY_VOID(sink.add(record_of_arena(arena)));
    if (arena.committed < arena.bytes) {
        FABRIC_TRY_VOID(sink.add(ArenaGrownRecord{raw(arena.id), arena.committed}));
    }
    FABRIC_TRY_VOID(publications_.write(arena, sink));
    for (const SessionId session : arena.sessions) {
        FABRIC_TRY_VOID(sink.add(ArenaJoinRecord{raw(arena.id), raw(session)}));
    }
    for (const auto& [id, lease] : arena.leases.all()) {
        FABRIC_TRY_VOID(Regions::write(arena, id, sink));
    }
    FABRIC_TRY_VOID(Groups::write(arena, sink));
    for (const auto& [offset, bytes] : arena.lost.all()) {
        FABRIC_TRY_VOID(sink.add(LostRecord{raw(arena.id), offset, bytes}));
    }
    return {};
}

}  // namespace fabricd
