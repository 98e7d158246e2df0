#include "fabricd/pool/registry.hpp"

#include <algorithm>
#include <set>
#include <span>

#include "fabricd/pool/waits.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "libfabricshm/shm/tensor_header.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

Registry::Registry(const Limits& limits, const Parts& parts)
    : books_(limits, parts.devices),
      journal_(parts.journal),
      growth_(books_, journal_, *parts.work),
      losses_(books_, journal_),
      regions_(books_, journal_, growth_),
      shards_(books_, journal_, *parts.memory, regions_),
      moves_({books_, journal_, *parts.memory, growth_, regions_, shards_, parts.copies}),
      groups_({books_, journal_, *parts.memory, growth_, losses_, regions_, shards_}),
      publications_(books_, journal_, *parts.memory, parts.unpublished),
      arenas_({books_, journal_, *parts.memory, *parts.work, regions_, shards_, groups_,
               publications_, parts.links, parts.commits_whole, parts.is_local}),
      sessions_(books_, journal_, regions_, arenas_),
      quotas_(books_, journal_),
      room_waits_({books_, regions_, arenas_, *parts.work}),
      slice_left_(limits.freed_at_once),
      pins(books_, publications_, [this](Effects out) { carry_out(std::move(out)); }),
      elastic(books_, journal_, *parts.memory, *parts.work, !parts.commits_whole),
      commits(books_, journal_, *parts.work, [this](Effects out) { carry_out(std::move(out)); }) {
    books_.caches_apart = parts.caches_apart;
}

// The only way out. Whatever an operation answers or lets go of comes after its records: what a
// client has heard, a daemon that is started again knows, whenever this one is killed.
void Registry::carry_out(Effects out) {
    // First what follows for other arenas, which may add to the rest.
    while (!out.left.empty() || !out.reopen.empty()) {
        for (const ArenaId id : std::exchange(out.left, {})) arenas_.drop_if_unused(id, out);
        for (const Reopening& again : std::exchange(out.reopen, {})) open_again(again, out);
    }
    FABRIC_CHECK(journal_.is_written());
    for (Answer& answer : out.answers) answers_.push_back(std::move(answer));
    std::vector<Answer>& given_back = journal_.behind() ? unwritten_ : answers_;
    for (Answer& answer : out.given_back) given_back.push_back(std::move(answer));
    for (const MoveEnd& end : out.moved) end.done(end.how);
}

void Registry::journal_rewritten() {
    journal_.caught_up();
    for (Answer& answer : unwritten_) answers_.push_back(std::move(answer));
    unwritten_.clear();
}

// ---- Sessions -------------------------------------------------------------------------------

Result<SessionId> Registry::open_session(const Peer& peer, const std::string& label,
                                         const Token& token, TimePoint now,
                                         const std::string& device) {
    return act([&](Effects&) { return sessions_.open(peer, label, token, now, device); });
}

Result<void> Registry::resume_session(SessionId session, const Peer& peer, const Token& token,
                                      ComeBack purpose) {
    return sessions_.resume(session, peer, token, purpose);
}

void Registry::connection_lost(SessionId session, TimePoint now) {
    sessions_.connection_lost(session, now);
}

void Registry::end_session(SessionId session, const char* why, SessionEnd how) {
    act([&](Effects& out) {
        // One that has nothing open can write to nothing.
        const Session* known = books_.find_session(session);
        const bool can_write = known != nullptr && !known->arenas.empty();
        const bool is_silent = how == SessionEnd::kGivenUp || how == SessionEnd::kLeftInCaches;
        if (how == SessionEnd::kMayLive && known != nullptr) {
            books_.session(session).may_live = true;
        }
        if (is_silent && can_write) {
            return sessions_.give_up(session, why, how, out);
        }
        sessions_.end(session, why, slice_left_, out);
    });
}

std::vector<RemoteSession> Registry::remote_sessions() const {
    std::vector<RemoteSession> all;
    for (const SessionId id : books_.remote) {
        const Session& session = books_.session(id);
        if (session.ending) continue;
        all.push_back({id, session.peer, session.given_up, {}});
        for (const ArenaId open : session.arenas) {
            const Arena& arena = books_.arena(open);
            all.back().ranges.push_back({open, arena.files.offset, arena.bytes});
        }
    }
    return all;
}

std::uint32_t Registry::shards_open(SessionId session, const fabricshm::ShardReads* claims) const {
    return shards_.open_of(session, claims);
}

// ---- Arenas ---------------------------------------------------------------------------------

Result<void> Registry::open_arena(Ticket ticket, const proto::ArenaOpen& request) {
    return act([&](Effects& out) { return room_waits_.open(ticket, request, out); });
}

// The dead holders of an arena may be noticed only after another session asked for its name, as
// after a restart of the daemon: that one gets a new arena, as if it had asked a moment later. The
// first of several makes it, the others find it in the making.
void Registry::open_again(const Reopening& again, Effects& out) {
    const Session* session = books_.find_session(again.wait.ticket.session);
    // It may have ended in the same turn: then there is nothing to answer.
    if (session == nullptr || session->ending) return;
    proto::ArenaOpen request{};
    copy_name(request.name, again.name);
    request.bytes = again.wait.bytes;
    const auto asked = room_waits_.open(again.wait.ticket, request, out);
    if (asked.ok()) return;
    out.answers.push_back(refusal_to(again.wait.ticket, again.wait.asked, asked.error()));
}

Result<void> Registry::adopt_arena(Ticket ticket, ArenaId arena,
                                   fabricshm::PresentedFiles presented) {
    return act(
        [&](Effects& out) { return arenas_.adopt(ticket, arena, std::move(presented), out); });
}

Result<bool> Registry::close_arena(Ticket ticket, ArenaId arena) {
    return act([&](Effects& out) { return arenas_.close(ticket, arena, slice_left_, out); });
}

void Registry::arena_made(ArenaId arena, Result<fabricshm::PoolPiece> piece) {
    if (room_waits_.makes_again(arena, piece)) return;
    if (elastic.waits_for_room(arena, piece)) return;
    act([&](Effects& out) {
        arenas_.made(arena, std::move(piece), out);
        elastic.settle(arena, true);
    });
}

void Registry::arena_adopted(ArenaId arena, Result<fabricshm::PoolPiece> piece) {
    act([&](Effects& out) {
        arenas_.adopted(arena, std::move(piece), out);
        elastic.settle(arena, false);
    });
}

bool Registry::park(SessionId session, ArenaId id, Bytes bytes, bool owned,
                    const std::function<void()>& serve) {
    Arena* const arena = growth_.arena_to_grow(session, id, bytes, owned);
    const auto when_grown = [=, this](Effects&) {
        if (!room_waits_.wait_for_hole(session, id, bytes, owned, serve)) serve();
    };
    if (arena != nullptr && growth_.park(*arena, bytes, when_grown)) return true;
    return room_waits_.wait_for_hole(session, id, bytes, owned, serve);
}

// Each request is served now, or parked again: others came first, or this was a part of what it
// needs. After a failure none is: those that find no hole are refused. But for that of a piece that
// none of them has asked for, and which may be more than they need.
void Registry::arena_grown(ArenaId id, Bytes to, const Result<void>& done) {
    Arena* const grown = books_.find_arena(id);
    if (grown == nullptr) return;
    if (act([&](Effects& out) { return elastic.shrunk(*grown, to, done, out); })) return;
    if (elastic.waits_for_room(*grown, to, growth_.need_of(*grown), done)) return;
    const bool is_piece = grown->growing == Growing::kAsAWhole;
    const Result<void> outcome = growth_.finish(*grown, to, done);
    if (outcome.ok()) elastic.grown(*grown);
    for (Parked& parked : std::exchange(grown->parked, {})) {
        Arena* const still = books_.find_arena(id);
        const bool may_wait = (outcome.ok() || is_piece) && still != nullptr;
        if (may_wait && growth_.park(*still, parked.bytes, parked.serve)) continue;
        act([&](Effects& out) { parked.serve(out); });
    }
    growth_.settled();
    act([&](Effects& out) {
        // Behind what needs the bytes now.
        Arena* const still = books_.find_arena(id);
        if (still != nullptr) commits.go_on(*still, is_piece, to, outcome, out);
        out.left.push_back(id);
    });
}

std::vector<int> Registry::descriptors(ArenaId id, SessionId session) const {
    const Arena* found = books_.find_arena(id);
    if (found == nullptr || !found->files.fd) return {};
    // Of no session, one that reads.
    const bool writes =
        session != SessionId::kNone && found->published && found->published->maker == session;
    const bool reads = found->published && !writes;
    if (reads && found->published->read_only) return {found->published->read_only.get()};
    std::vector<int> numbers{found->files.fd.get()};
    for (const fabricshm::Fd& other : found->files.others) numbers.push_back(other.get());
    return numbers;
}

// ---- Regions and tensors --------------------------------------------------------------------

Result<proto::Region> Registry::create_region(SessionId session, const proto::Region& request) {
    FABRIC_TRY(Arena * arena, books_.arena_written_by(session, ArenaId{request.arena_id}));
    if (arena->published) {
        // One, asked for again perhaps by a session that lost the answer.
        const auto held = arena->regions_of(session);
        if (!held.empty() && arena->regions.at(held[0]).bytes == request.bytes) {
            return arena->wire(held[0]);
        }
    }
    return act([&](Effects&) { return regions_.create(session, *arena, request.bytes); });
}

Result<proto::Region> Registry::open_region(SessionId session, const proto::Region& request) const {
    return regions_.open(session, request);
}

Result<void> Registry::free_region(SessionId session, ArenaId arena, RegionId region,
                                   std::uint64_t generation) {
    return act([&](Effects&) { return regions_.free(session, arena, region, generation); });
}

bool Registry::has_tensor(ArenaId id, const std::string& name) const {
    const auto arena = books_.arenas.find(id);
    return arena != books_.arenas.end() && regions_.has_tensor(arena->second, name);
}

Result<proto::Tensor> Registry::create_tensor(SessionId session, const proto::Tensor& request) {
    FABRIC_TRY(Arena * arena, books_.arena_written_by(session, ArenaId{request.region.arena_id}));
    FABRIC_TRY(const Bytes elements,
               proto::tensor_bytes(request.dtype, std::span(request.shape, request.ndim)));
    const Bytes bytes = elements + fabricshm::kTensorHeaderBytes;
    const std::string name = request.name;
    regions_.give_up_name(*arena, name);
    return act(
        [&](Effects& out) { return regions_.create_tensor(session, *arena, request, bytes, out); });
}

Result<void> Registry::open_tensor(Ticket ticket, const proto::Tensor& request, TimePoint now) {
    return act([&](Effects& out) { return regions_.open_tensor(ticket, request, now, out); });
}

Result<proto::Region> Registry::note_lost(SessionId session, const proto::Region& request) {
    return act([&](Effects& out) { return losses_.note(session, request, out); });
}

// ---- Shards ---------------------------------------------------------------------------------

Result<proto::Shard> Registry::create_shard(SessionId session, const proto::Shard& request) {
    return act([&](Effects& out) { return shards_.create(session, request, out); });
}

Result<void> Registry::open_shard(Ticket ticket, const proto::Shard& request, TimePoint now) {
    return act([&](Effects& out) { return shards_.open(ticket, request, now, out); });
}

Result<void> Registry::close_shard(SessionId session, const proto::Shard& request) {
    return act([&](Effects& out) { return shards_.close(session, request, out); });
}

Result<void> Registry::free_shard(SessionId session, const proto::Shard& request) {
    return act([&](Effects& out) { return shards_.free(session, request, out); });
}

Result<void> Registry::ask_move(SessionId session, const proto::Shard& request) {
    return act([&](Effects& out) { return moves_.ask(session, request, out); });
}

Result<void> Registry::move_shard(const MoveOrder& order, MoveDone done) {
    return act([&](Effects& out) { return moves_.order(order, std::move(done), out); });
}

void Registry::shard_copied(ShardId id, Result<fabricshm::ShardWord> seen) {
    act([&](Effects& out) { moves_.copied(id, std::move(seen), out); });
}

std::optional<ShardView> Registry::shard(const std::string& name) const {
    const auto named = shard_named(books_, name);
    if (!named) return std::nullopt;
    return view_of(books_, books_.shard(*named));
}

// ---- Quotas ---------------------------------------------------------------------------------

Result<QuotaState> Registry::set_quota(const QuotaOrder& order, TimePoint now) {
    return act([&](Effects&) { return quotas_.set(order, now); });
}

Result<void> Registry::shift_quotas(std::vector<QuotaShift> shifts, TimePoint now) {
    if (Elastic::is_about_caches(shifts)) return elastic.shift(shifts);
    return act([&](Effects&) { return quotas_.shift(std::move(shifts), now); });
}

fabricshm::QuotaImage Registry::quotas_of(const std::string& device, std::uint32_t uid,
                                          TimePoint now) const {
    return quotas_.of(device, uid, now);
}

// ---- Groups ---------------------------------------------------------------------------------

Result<void> Registry::join_group(Ticket ticket, const proto::Group& request, TimePoint now) {
    return act([&](Effects& out) -> Result<void> {
        FABRIC_TRY(const auto complete, groups_.join(ticket, request, now, out));
        if (!complete) return {};
        groups_.form(*complete, out);
        return {};
    });
}

Result<void> Registry::leave_group(SessionId session, const proto::Group& request) {
    return act([&](Effects& out) { return groups_.leave(session, request, out); });
}

Result<void> Registry::shrink_group(Ticket ticket, const proto::Group& request, TimePoint now) {
    return act([&](Effects& out) { return groups_.shrink(ticket, request, now, out); });
}

// ---- Time -----------------------------------------------------------------------------------

std::vector<SessionId> Registry::expire(TimePoint now) {
    std::vector<SessionId> ended;
    slice_left_ = books_.limits.freed_at_once;
    act([&](Effects& out) { expire_waits(books_, now, out); });
    while (!books_.lost.empty() && books_.lost.begin()->first <= now) {
        const SessionId id = books_.lost.begin()->second;
        // Of a process on another host nothing is known but that it is silent.
        if (books_.session(id).peer.is_remote()) {
            end_session(id, "did not come back", SessionEnd::kGivenUp);
            continue;
        }
        ended.push_back(id);
        end_session(id, "did not come back", SessionEnd::kMayLive);
    }
    if (arenas_.away_until() <= now) act([&](Effects& out) { arenas_.give_up_on_away(out); });
    act([&](Effects& out) {
        quotas_.settle(now);
        free_in_turn(out);
        shards_.sweep_due(now, out);
    });
    act([&](Effects& out) { room_waits_.serve_some(out); });
    elastic.poll(now);
    // Last: what that led to may have met a copy that is still read.
    shards_.set_next_look(now);
    return ended;
}

// What was begun by deaths and is too much for one turn.
void Registry::free_in_turn(Effects& out) {
    for (const SessionId id : std::set<SessionId>(books_.ending)) {
        if (slice_left_ == 0) break;
        if (books_.is_ending(id)) slice_left_ = sessions_.end_some(id, slice_left_, out);
    }
    for (const auto& [key, ticket] : Leaving(books_.leaving)) {
        if (slice_left_ == 0) break;
        const auto& [session, arena] = key;
        const bool goes_on = books_.is_leaving(session, arena);
        if (goes_on) slice_left_ = arenas_.leave_some(session, arena, slice_left_, out);
    }
    for (const ArenaId id : std::set<ArenaId>(books_.freeing)) {
        Arena* const arena = books_.find_arena(id);
        if (arena != nullptr) slice_left_ = regions_.free_some(*arena, slice_left_);
    }
}

TimePoint Registry::next_deadline() const {
    // The next turn, at once.
    const bool goes_on = !books_.freeing.empty() || !books_.ending.empty() ||
                         !books_.leaving.empty() || !room_waits_.empty();
    if (goes_on) return TimePoint::min();
    const TimePoint lost = books_.lost.empty() ? TimePoint::max() : books_.lost.begin()->first;
    return std::min({books_.waits.next_deadline(), lost, arenas_.away_until(), shards_.next_look(),
                     quotas_.next_deadline(), elastic.next_poll()});
}

// ---- The journal ----------------------------------------------------------------------------

Result<void> Registry::restore(const PoolImage& image, TimePoint now, Duration grace) {
    // Ids go on above everything the journal ever mentioned, and the epoch above its last: what a
    // client kept from before is distinguishable from what it gets now.
    books_.grace = grace;
    books_.daemon_epoch = image.daemon_epoch + 1;
    books_.last_id = image.last_id;
    FABRIC_TRY_VOID(sessions_.restore(image, now));
    for (const auto& [id, arena] : image.arenas) FABRIC_TRY_VOID(arenas_.restore(arena));
    FABRIC_TRY_VOID(shards_.restore(image));
    quotas_.restore(image, now);
    // What no single record shows; after this the state is as good as one that was kept.
    if (const auto wrong = contradictions(); !wrong.empty()) {
        fabricshm::log(fabricshm::LogLevel::kError, "journal: %s", wrong.front().c_str());
        return kContradiction;
    }
    // Not before: a registry that is thrown away leaves nothing in the pool's account.
    arenas_.expect_all();
    // Before any session can resume: what was begun is finished.
    for (const SessionId id : image.ending) {
        end_session(id, "its end had begun before the restart", SessionEnd::kMayLive);
    }
    if (books_.arenas.empty()) return {};
    // Arenas that no session had open can't be presented: the daemon was killed while it
    // dropped them. What the device itself remembers is found before anything expires.
    const bool claimable =
        std::any_of(books_.arenas.begin(), books_.arenas.end(),
                    [](const auto& arena) { return !arena.second.sessions.empty(); });
    arenas_.wait_until(claimable ? fabricshm::deadline_after(now, grace) : now);
    return {};
}

bool Registry::found_in_pool(ArenaId id, fabricshm::PoolPiece piece) {
    Arena* arena = books_.find_arena(id);
    // Of another size it is not the arena that the journal means.
    if (arena == nullptr || piece.bytes != arena->bytes) return false;
    arena_adopted(id, std::move(piece));
    return true;
}

Result<void> Registry::write_journal(JournalSink& sink) const {
    // First: check_start() takes no journal without it.
    FABRIC_TRY_VOID(sink.add(
        StartRecord{kJournalMagic, books_.daemon_epoch, books_.last_id, kJournalVersion, 0}));
    for (const auto& [id, session] : books_.sessions) {
        FABRIC_TRY_VOID(Sessions::write(session, sink));
    }
    for (const auto& [id, arena] : books_.arenas) {
        // No client has heard of it; if its making succeeds, that appends its record.
        if (arena.state == ArenaState::kMaking) continue;
        FABRIC_TRY_VOID(arenas_.write(arena, sink));
    }
    for (const auto& [id, shard] : books_.shards) FABRIC_TRY_VOID(shards_.write(shard, sink));
    return quotas_.write(sink);
}

}  // namespace fabricd
