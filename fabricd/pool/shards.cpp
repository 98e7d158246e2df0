#include "fabricd/pool/shards.hpp"

#include <algorithm>
#include <set>

#include "fabricd/pool/refusals.hpp"
#include "fabricd/pool/waits.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;
using fabricshm::kShardHeaderBytes;
using fabricshm::kShardReadersMax;
using fabricshm::ShardHeader;

namespace {

bool same_kind(const TensorInfo& left, const TensorInfo& right) {
    return left.dtype == right.dtype && left.ndim == right.ndim &&
           std::equal(std::begin(left.shape), std::end(left.shape), right.shape);
}

proto::Shard wire(const Books& books, const Shard& shard, int slot) {
    proto::Shard reply{};
    reply.header = books.arena(shard.id.arena).wire(shard.id.header);
    copy_name(reply.name, shard.info.name);
    std::copy(std::begin(shard.info.shape), std::end(shard.info.shape), std::begin(reply.shape));
    reply.dtype = shard.info.dtype;
    reply.ndim = shard.info.ndim;
    reply.flags = shard.fixed ? proto::kShardFixed : 0;
    reply.slot = slot;
    reply.owner_pid = books.session(shard.owner).peer.pid;
    const std::string& home = books.arena(shard.copies[shard.current]->arena).name;
    home.copy(reply.target, proto::kNameBytes - 1);
    return reply;
}

}  // namespace

Result<Shard*> shard_of(Books& books, SessionId session, const proto::Shard& request) {
    FABRIC_TRY(Arena * arena, books.arena_written_by(session, ArenaId{request.header.arena_id}));
    Shard* shard = books.find_shard({arena->id, RegionId{request.header.region_id}});
    if (shard == nullptr) return Error{Errc::kNotFound, 0, "find shard"};
    return shard;
}

Result<proto::Shard> Shards::create(SessionId session, const proto::Shard& request, Effects& out) {
    FABRIC_TRY(Arena * arena, books_.arena_written_by(session, ArenaId{request.header.arena_id}));
    FABRIC_TRY(const Bytes bytes,
               proto::tensor_bytes(request.dtype, std::span(request.shape, request.ndim)));
    TensorInfo info{request.name, request.dtype, request.ndim, {}};
    std::copy_n(request.shape, request.ndim, info.shape);
    const auto named = arena->shards.find(info.name);
    if (named != arena->shards.end()) {
        Shard& found = books_.shard({arena->id, named->second});
        // As for tensors: the answer that was lost when the daemon was killed.
        const bool again = found.recovered && found.owner == session && same_kind(found.info, info);
        if (again) return open_now(found, session);
        return Error{Errc::kExists, 0, "create shard"};
    }
    FABRIC_TRY(Shard * shard, place(books_.session(session), *arena, info, bytes, out));
    shard->fixed = (request.flags & proto::kShardFixed) != 0;
    const Result<void> made = format(*shard);
    const Result<proto::Shard> opened = made.ok() ? open_now(*shard, session) : made.error();
    if (!opened.ok()) {
        retire(*shard, out);
        return opened;
    }
    answer_waiting(*shard, out);
    return opened;
}

// Two regions, one for the header and one for the elements, and then the shard that they belong to.
// Their records say that they are some shard's: what a crash leaves in between is freed.
Result<Shard*> Shards::place(Session& owner, Arena& arena, const TensorInfo& info, Bytes bytes,
                             Effects& out) {
    // The header's id is not known yet: kNone stands for the region itself.
    FABRIC_TRY(const RegionId header, regions_.make(owner, arena, kShardHeaderBytes, std::nullopt,
                                                    ShardId{arena.id, RegionId::kNone}));
    const ShardId id{arena.id, header};
    Shard& shard = books_.shards[id];
    shard = Shard{};
    shard.id = id;
    shard.generation = arena.leases.find(header)->epoch;
    shard.owner = owner.id;
    shard.info = info;
    shard.bytes = bytes;
    const auto copy = regions_.make_copy(owner, arena, std::max<Bytes>(bytes, 1), owner.device, id);
    Result<void> done = copy.ok() ? Result<void>() : copy.error();
    if (done.ok()) {
        shard.copies[0] = {arena.id, copy.value(), arena.leases.find(copy.value())->epoch};
        arena.shards[info.name] = header;
        done = journal_.add(record_of(books_, shard));
    }
    if (done.ok()) return &shard;
    retire(shard, out);
    return done.error();
}

Result<void> Shards::format(const Shard& shard) {
    const Arena& arena = books_.arena(shard.id.arena);
    FABRIC_TRY(const ArenaSpan header, header_of(shard));
    const std::uint64_t offset = arena.regions.at(shard.copies[0]->region).offset;
    const fabricshm::PoisonGuard guard;
    fabricshm::format_shard(header_in(header), {raw(shard.id.header), shard.generation},
                            shard.bytes, raw(arena.id), offset);
    if (guard.hit()) return Error{Errc::kPoisoned, static_cast<int>(raw(shard.id.header)), "shard"};
    return {};
}

Result<ArenaSpan> Shards::header_of(const Shard& shard) const {
    const Arena& arena = books_.arena(shard.id.arena);
    return memory_.span(arena.id, arena.regions.at(shard.id.header).offset, kShardHeaderBytes);
}

// The session's line: the one that it has, or a free one.
Result<proto::Shard> Shards::open_now(Shard& shard, SessionId session) {
    const auto known = shard.readers.find(session);
    if (known != shard.readers.end()) {
        ++known->second.opens;
        return wire(books_, shard, known->second.slot);
    }
    // The lowest that is free. A line is given back only when its session is done with it.
    std::set<int> taken;
    for (const auto& [reader, book] : shard.readers) taken.insert(book.slot);
    int slot = 0;
    while (taken.count(slot) != 0) ++slot;
    if (slot >= kShardReadersMax) {
        return refuse_count("readers of the shard", "shard '" + shard.info.name + "'", "readers",
                            kShardReadersMax, "");
    }
    FABRIC_TRY(const ArenaSpan header, header_of(shard));
    FABRIC_TRY_VOID(
        journal_.add(ShardReaderRecord{raw(shard.id.arena), raw(shard.id.header), raw(session),
                                       static_cast<std::uint32_t>(slot), 1}));
    const fabricshm::PoisonGuard guard;
    fabricshm::assign_reader(header_in(header), slot, raw(session));
    shard.readers[session] = {slot, 1, false};
    return wire(books_, shard, slot);
}

Result<void> Shards::open(Ticket ticket, const proto::Shard& request, TimePoint now, Effects& out) {
    FABRIC_TRY(Arena * arena,
               books_.arena_written_by(ticket.session, ArenaId{request.header.arena_id}));
    const std::string name = request.name;
    const TimePoint deadline =
        fabricshm::deadline_after(now, std::chrono::milliseconds(request.timeout_ms));
    FABRIC_TRY_VOID(add_wait(
        books_, {ticket, deadline, WaitKey{WaitKind::kShard, arena->id, name, GroupId::kNone},
                 proto::Type::kShardOpen}));
    const auto named = arena->shards.find(name);
    if (named != arena->shards.end()) answer_waiting(books_.shard({arena->id, named->second}), out);
    return {};
}

void Shards::answer_waiting(Shard& shard, Effects& out) {
    const WaitKey key{WaitKind::kShard, shard.id.arena, shard.info.name, GroupId::kNone};
    for (const WaitId id : books_.waits.with_key(key)) {
        const Wait wait = *books_.waits.take(id);
        const auto opened = open_now(shard, wait.ticket.session);
        if (!opened.ok()) {
            out.answers.push_back(refusal_to(wait.ticket, wait.asked, opened.error()));
            continue;
        }
        out.answers.push_back({wait.ticket, wait.asked, Error{Errc::kOk, 0, ""}, opened.value()});
    }
}

Result<void> Shards::close(SessionId session, const proto::Shard& request, Effects& out) {
    FABRIC_TRY(Shard * shard, shard_of(books_, session, request));
    const auto reader = shard->readers.find(session);
    if (reader == shard->readers.end()) return Error{Errc::kNotFound, 0, "close shard"};
    if (reader->second.recovered || --reader->second.opens > 0) return {};
    drop_reader(*shard, session);
    sweep(shard->id, out);
    return {};
}

Result<void> Shards::free(SessionId session, const proto::Shard& request, Effects& out) {
    FABRIC_TRY(Shard * shard, shard_of(books_, session, request));
    if (shard->owner != session) return Error{Errc::kDenied, 0, "free shard of another session"};
    if (shard->retired) return Error{Errc::kNotFound, 0, "free shard"};
    retire(*shard, out);
    return {};
}

void Shards::drop_reader(Shard& shard, SessionId session) {
    const auto reader = shard.readers.find(session);
    if (reader == shard.readers.end()) return;
    if (const auto header = header_of(shard); header.ok()) {
        const fabricshm::PoisonGuard guard;
        fabricshm::assign_reader(header_in(*header), reader->second.slot, 0);
    }
    journal_.note(ShardReaderRecord{raw(shard.id.arena), raw(shard.id.header), raw(session),
                                    static_cast<std::uint32_t>(reader->second.slot), 0});
    shard.readers.erase(reader);
}

// From here on no session begins to read it. What is read stays as it is until the last reader is
// done: all its regions are kept from others meanwhile, as those of dead sessions are.
void Shards::retire(Shard& shard, Effects& out) {
    const ShardId id = shard.id;
    if (!shard.retired) end(shard);
    sweep(id, out);
}

void Shards::end(Shard& shard) {
    shard.retired = true;
    books_.loose_shards.insert(shard.id);
    Arena& home = books_.arena(shard.id.arena);
    const auto named = home.shards.find(shard.info.name);
    if (named != home.shards.end() && named->second == shard.id.header) home.shards.erase(named);
    Session& owner = books_.session(shard.owner);
    const auto quarantine = [&](Arena& arena, RegionId region) {
        regions_.count(owner, arena.regions.at(region), -1);
        regions_.quarantine(arena, region);
    };
    // The header first: its record says that the shard is gone. It is written before the magic
    // goes, so that a header without one, of a shard that lives, was never formatted.
    quarantine(home, shard.id.header);
    for (const auto& copy : shard.copies) {
        if (copy) quarantine(books_.arena(copy->arena), copy->region);
    }
    if (const auto header = header_of(shard); header.ok()) {
        const fabricshm::PoisonGuard guard;
        fabricshm::retire_shard(header_in(*header));
    }
    // Relaxed: the copier may as well see it a piece later.
    if (shard.move) shard.move->progress->cancelled.store(true, std::memory_order_relaxed);
}

void Shards::leave(SessionId session, ArenaId arena, Effects& out) {
    std::vector<ShardId> touched;
    for (const auto& [id, shard] : books_.shards) {
        const bool copied_there =
            std::any_of(std::begin(shard.copies), std::end(shard.copies),
                        [&](const auto& copy) { return copy && copy->arena == arena; });
        const bool owned = shard.owner == session && (id.arena == arena || copied_there);
        const bool read = id.arena == arena && shard.readers.count(session) != 0;
        if (owned || read) touched.push_back(id);
    }
    for (const ShardId id : touched) {
        Shard& shard = books_.shard(id);
        if (id.arena == arena) drop_reader(shard, session);
        if (shard.owner == session) {
            shard.abandoned = true;
            retire(shard, out);
        } else {
            sweep(id, out);
        }
    }
}

// Whether any session may be reading the copy at `place`. Unknown is yes.
bool Shards::is_read(const Shard& shard, int place) const {
    if (shard.readers.empty()) return false;
    const auto header = header_of(shard);
    if (!header.ok()) return true;
    const fabricshm::PoisonGuard guard;
    return std::any_of(shard.readers.begin(), shard.readers.end(), [&](const auto& reader) {
        return fabricshm::is_pinned(header_in(*header), reader.second.slot, place);
    });
}

void Shards::release_copy(Shard& shard, int place) {
    const ShardCopy copy = *shard.copies[place];
    Arena& arena = books_.arena(copy.arena);
    const bool held = arena.leases.find(copy.region)->state == LeaseState::kHeld;
    if (held) regions_.count(books_.session(shard.owner), arena.regions.at(copy.region), -1);
    shard.copies[place].reset();
    regions_.release(arena, copy.region);
}

void Shards::drop_copy(Shard& shard, int place, Effects& out) {
    const ArenaId arena = shard.copies[place]->arena;
    const ArenaId home = shard.id.arena;
    release_copy(shard, place);
    // An arena that no session has open is kept for the readers of what was moved there.
    if (arena != home) out.left.push_back(arena);
}

bool Shards::is_endangered(const Shard& shard, ArenaId arena) const {
    const Arena& there = books_.arena(arena);
    // A silent host's processes may be reading it, or writing.
    if (!there.dangers.given_up.empty()) return true;
    return shard.abandoned && there.endangered(shard.owner);
}

// Asks to be called again for what is still read.
void Shards::sweep(ShardId id, Effects& out) {
    Shard* shard = books_.find_shard(id);
    const bool is_loose =
        shard != nullptr && (shard->retired || (shard->copies[0] && shard->copies[1]));
    if (!is_loose) books_.loose_shards.erase(id);
    if (!is_loose || !shard->settled || shard->move) return;  // their ends bring us here
    Arena& home = books_.arena(id.arena);
    for (int place = 0; place < 2; ++place) {
        const bool valid = !shard->retired && place == shard->current;
        if (valid || !shard->copies[place]) continue;
        if (is_read(*shard, place)) {
            asked_ = true;
        } else if (!is_endangered(*shard, shard->copies[place]->arena)) {
            drop_copy(*shard, place, out);
            FAULT_POINT("shard.dropped");
        }
    }
    const bool gone = shard->retired && !shard->copies[0] && !shard->copies[1];
    if (!gone || !shard->readers.empty() || is_endangered(*shard, id.arena)) return;
    regions_.release(home, id.header);
    journal_.note(ShardEndRecord{raw(id.arena), raw(id.header)});
    books_.shards.erase(id);
    books_.loose_shards.erase(id);
}

void Shards::sweep_all(Effects& out) {
    due_ = TimePoint::max();
    asked_ = false;
    // A copy: those that are gone leave the set.
    const std::vector<ShardId> ids(books_.loose_shards.begin(), books_.loose_shards.end());
    for (const ShardId id : ids) sweep(id, out);
}

void Shards::sweep_due(TimePoint now, Effects& out) {
    if (due_ > now) return;
    pause_ = std::min(2 * pause_, kMaxPause);
    sweep_all(out);
}

void Shards::set_next_look(TimePoint now) noexcept {
    if (asked_ && due_ == TimePoint::max()) due_ = fabricshm::deadline_after(now, pause_);
}

void Shards::look_soon() noexcept {
    pause_ = kMinPause;
    due_ = TimePoint::max();
}

std::vector<ShardId> Shards::forget(ArenaId arena, Effects& out) {
    std::vector<ShardId> lost_a_copy;
    for (auto next = books_.shards.begin(); next != books_.shards.end();) {
        auto& [id, shard] = *next;
        bool lost = false;
        for (auto& copy : shard.copies) {
            if (!copy || copy->arena != arena) continue;
            lost = true;
            copy.reset();
        }
        if (id.arena != arena) {
            if (lost) lost_a_copy.push_back(id);
            ++next;
            continue;
        }
        for (int place = 0; place < 2; ++place) {
            if (!shard.copies[place]) continue;
            // It may have been kept for the copy alone.
            out.left.push_back(shard.copies[place]->arena);
            release_copy(shard, place);
        }
        books_.loose_shards.erase(id);
        next = books_.shards.erase(next);
    }
    return lost_a_copy;
}

void Shards::go_on_without(const std::vector<ShardId>& lost_a_copy, Effects& out) {
    for (const ShardId id : lost_a_copy) {
        if (Shard* const shard = books_.find_shard(id); shard != nullptr) retire(*shard, out);
    }
}

std::uint32_t Shards::open_of(SessionId session, const fabricshm::ShardReads* told) const {
    std::uint32_t open = 0;
    for (std::size_t i = 0; i < fabricshm::kShardsTold && told[i].shard != 0; ++i) {
        const Shard* found = books_.find_shard({ArenaId{told[i].arena}, RegionId{told[i].shard}});
        const bool reads = found != nullptr && found->readers.count(session) != 0;
        if (reads) open |= std::uint32_t{1} << i;
    }
    return open;
}

}  // namespace fabricd
