// Registry: shards. Whose they are, who reads them, and when a copy's bytes are free again.

#include <algorithm>
#include <set>

#include "fabricd/pool/refusals.hpp"
#include "fabricd/pool/registry.hpp"
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

}  // namespace

Shard* Registry::find_shard(ShardId id) {
    const auto found = shards_.find(id);
    return found == shards_.end() ? nullptr : &found->second;
}

// A shard of an arena that the session has open.
Result<Shard*> Registry::shard_of(SessionId session, const proto::Shard& request) {
    FABRIC_TRY(Arena * arena, arena_of(session, ArenaId{request.header.arena_id}));
    Shard* shard = find_shard({arena->id, RegionId{request.header.region_id}});
    if (shard == nullptr) return Error{Errc::kNotFound, 0, "find shard"};
    return shard;
}

proto::Shard Registry::wire_shard(const Shard& shard, int slot) const {
    const Arena& arena = arenas_.at(shard.id.arena);
    const Session& owner = sessions_.at(shard.owner);
    proto::Shard reply{};
    reply.header = arena.wire(shard.id.header);
    copy_name(reply.name, shard.info.name);
    std::copy(std::begin(shard.info.shape), std::end(shard.info.shape), std::begin(reply.shape));
    reply.dtype = shard.info.dtype;
    reply.ndim = shard.info.ndim;
    reply.flags = shard.fixed ? proto::kShardFixed : 0;
    reply.slot = slot;
    reply.owner_pid = owner.peer.pid;
    const std::string& home = arenas_.at(shard.copies[shard.current]->arena).name;
    home.copy(reply.target, proto::kNameBytes - 1);
    return reply;
}

Result<proto::Shard> Registry::create_shard(SessionId session, const proto::Shard& request) {
    FABRIC_TRY(Arena * arena, arena_of(session, ArenaId{request.header.arena_id}));
    FABRIC_TRY(const Bytes bytes,
               proto::tensor_bytes(request.dtype, std::span(request.shape, request.ndim)));
    TensorInfo info{request.name, request.dtype, request.ndim, {}};
    std::copy_n(request.shape, request.ndim, info.shape);
    const auto named = arena->shards.find(info.name);
    if (named != arena->shards.end()) {
        Shard& found = *find_shard({arena->id, named->second});
        // As for tensors: the answer that was lost when the daemon was killed.
        const bool again = found.recovered && found.owner == session && same_kind(found.info, info);
        if (again) return open_now(found, session);
        return Error{Errc::kExists, 0, "create shard"};
    }
    FABRIC_TRY(Shard * shard, place_shard(*find_session(session), *arena, info, bytes));
    shard->fixed = (request.flags & proto::kShardFixed) != 0;
    const Result<void> made = format_shard(*shard);
    const Result<proto::Shard> opened = made.ok() ? open_now(*shard, session) : made.error();
    if (!opened.ok()) {
        retire_shard(*shard);
        return opened;
    }
    answer_shard(*shard);
    return opened;
}

// Two regions, one for the header and one for the elements, and then the shard that they belong to.
// Their records say that they are some shard's: what a crash leaves in between is freed.
Result<Shard*> Registry::place_shard(Session& owner, Arena& arena, const TensorInfo& info,
                                     Bytes bytes) {
    // The header's id is not known yet: kNone stands for the region itself.
    FABRIC_TRY(const RegionId header, make_region(owner, arena, kShardHeaderBytes, std::nullopt,
                                                  ShardId{arena.id, RegionId::kNone}));
    const ShardId id{arena.id, header};
    Shard& shard = shards_[id];
    shard = Shard{};
    shard.id = id;
    shard.generation = arena.leases.find(header)->epoch;
    shard.owner = owner.id;
    shard.info = info;
    shard.bytes = bytes;
    const auto copy = make_copy(owner, arena, std::max<Bytes>(bytes, 1), owner.device, id);
    Result<void> done = copy.ok() ? Result<void>() : copy.error();
    if (done.ok()) {
        shard.copies[0] = {arena.id, copy.value(), arena.leases.find(copy.value())->epoch};
        arena.shards[info.name] = header;
        done = journal_.add(record_of(shard));
    }
    if (done.ok()) return &shard;
    retire_shard(shard);
    return done.error();
}

// A region for the elements, counted against `device`: a copy, since callers give the owner's own,
// which is exchanged below.
Result<RegionId> Registry::make_copy(Session& owner, Arena& arena, Bytes bytes, std::string device,
                                     ShardId shard) {
    if (!devices_.admits(device, RegionAllocator::rounded(bytes))) {
        return devices_.refusal(device, bytes);
    }
    // make_region() counts against the owner's device, whose quota it need not fit.
    const std::string own = std::exchange(owner.device, std::move(device));
    auto region = make_region(owner, arena, bytes, std::nullopt, shard);
    owner.device = own;
    return region;
}

Result<void> Registry::format_shard(const Shard& shard) {
    const Arena& arena = arenas_.at(shard.id.arena);
    FABRIC_TRY(const ArenaSpan header, header_of(shard));
    const std::uint64_t offset = arena.regions.at(shard.copies[0]->region).offset;
    const fabricshm::PoisonGuard guard;
    fabricshm::format_shard(header_in(header), {raw(shard.id.header), shard.generation},
                            shard.bytes, raw(arena.id), offset);
    if (guard.hit()) return Error{Errc::kPoisoned, static_cast<int>(raw(shard.id.header)), "shard"};
    return {};
}

Result<ArenaSpan> Registry::header_of(const Shard& shard) const {
    const Arena& arena = arenas_.at(shard.id.arena);
    return memory_->span(arena.id, arena.regions.at(shard.id.header).offset, kShardHeaderBytes);
}

// The session's line: the one that it has, or a free one.
Result<proto::Shard> Registry::open_now(Shard& shard, SessionId session) {
    const auto known = shard.readers.find(session);
    if (known != shard.readers.end()) {
        ++known->second.opens;
        return wire_shard(shard, known->second.slot);
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
    return wire_shard(shard, slot);
}

Result<void> Registry::open_shard(Ticket ticket, const proto::Shard& request, TimePoint now) {
    FABRIC_TRY(Arena * arena, arena_of(ticket.session, ArenaId{request.header.arena_id}));
    const std::string name = request.name;
    const TimePoint deadline =
        fabricshm::deadline_after(now, std::chrono::milliseconds(request.timeout_ms));
    FABRIC_TRY_VOID(
        add_wait({ticket, deadline, WaitKey{WaitKind::kShard, arena->id, name, GroupId::kNone},
                  proto::Type::kShardOpen}));
    const auto named = arena->shards.find(name);
    if (named != arena->shards.end()) answer_shard(*find_shard({arena->id, named->second}));
    return {};
}

void Registry::answer_shard(Shard& shard) {
    const WaitKey key{WaitKind::kShard, shard.id.arena, shard.info.name, GroupId::kNone};
    for (const WaitId id : waits_.with_key(key)) {
        const Wait wait = *waits_.take(id);
        const auto opened = open_now(shard, wait.ticket.session);
        if (!opened.ok()) {
            refuse(wait.ticket, wait.asked, opened.error());
            continue;
        }
        answers_.push_back({wait.ticket, wait.asked, Error{Errc::kOk, 0, ""}, opened.value()});
    }
}

Result<void> Registry::close_shard(SessionId session, const proto::Shard& request) {
    FABRIC_TRY(Shard * shard, shard_of(session, request));
    const auto reader = shard->readers.find(session);
    if (reader == shard->readers.end()) return Error{Errc::kNotFound, 0, "close shard"};
    if (reader->second.recovered || --reader->second.opens > 0) return {};
    drop_reader(*shard, session);
    sweep_shard(shard->id);
    return {};
}

Result<void> Registry::free_shard(SessionId session, const proto::Shard& request) {
    FABRIC_TRY(Shard * shard, shard_of(session, request));
    if (shard->owner != session) return Error{Errc::kDenied, 0, "free shard of another session"};
    if (shard->retired) return Error{Errc::kNotFound, 0, "free shard"};
    retire_shard(*shard);
    return {};
}

void Registry::drop_reader(Shard& shard, SessionId session) {
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

// From here on nobody begins to read it. What is read stays as it is until the last reader is done:
// all its regions are kept from others meanwhile, as those of dead sessions are.
void Registry::retire_shard(Shard& shard) {
    const ShardId id = shard.id;
    if (!shard.retired) end_shard(shard);
    sweep_shard(id);
}

void Registry::end_shard(Shard& shard) {
    shard.retired = true;
    loose_shards_.insert(shard.id);
    Arena& home = *find_arena(shard.id.arena);
    const auto named = home.shards.find(shard.info.name);
    if (named != home.shards.end() && named->second == shard.id.header) home.shards.erase(named);
    Session& owner = *find_session(shard.owner);
    const auto quarantine = [&](Arena& arena, RegionId region) {
        count_region(owner, arena.regions.at(region), -1);
        quarantine_region(arena, region);
    };
    // The header first: its record says that the shard is gone. It is written before the magic
    // goes, so that a header without one, of a shard that lives, was never formatted.
    quarantine(home, shard.id.header);
    for (const auto& copy : shard.copies) {
        if (copy) quarantine(*find_arena(copy->arena), copy->region);
    }
    if (const auto header = header_of(shard); header.ok()) {
        const fabricshm::PoisonGuard guard;
        fabricshm::retire_shard(header_in(*header));
    }
    // Relaxed: the copier may as well see it a piece later.
    if (shard.move) shard.move->progress->cancelled.store(true, std::memory_order_relaxed);
}

// A session leaves the arena: what it owns there ends, what it reads there it reads no more.
void Registry::leave_shards(SessionId session, ArenaId arena) {
    std::vector<ShardId> touched;
    for (const auto& [id, shard] : shards_) {
        const bool copied_there =
            std::any_of(std::begin(shard.copies), std::end(shard.copies),
                        [&](const auto& copy) { return copy && copy->arena == arena; });
        const bool owned = shard.owner == session && (id.arena == arena || copied_there);
        const bool read = id.arena == arena && shard.readers.count(session) != 0;
        if (owned || read) touched.push_back(id);
    }
    for (const ShardId id : touched) {
        Shard& shard = *find_shard(id);
        if (id.arena == arena) drop_reader(shard, session);
        if (shard.owner == session) {
            shard.abandoned = true;
            retire_shard(shard);
        } else {
            sweep_shard(id);
        }
    }
}

// Whether any session may be reading the copy at `place`. Unknown is yes.
bool Registry::is_read(const Shard& shard, int place) const {
    if (shard.readers.empty()) return false;
    const auto header = header_of(shard);
    if (!header.ok()) return true;
    const fabricshm::PoisonGuard guard;
    return std::any_of(shard.readers.begin(), shard.readers.end(), [&](const auto& reader) {
        return fabricshm::is_pinned(header_in(*header), reader.second.slot, place);
    });
}

void Registry::release_copy(Shard& shard, int place) {
    const ShardCopy copy = *shard.copies[place];
    Arena& arena = *find_arena(copy.arena);
    const bool held = arena.leases.find(copy.region)->state == LeaseState::kHeld;
    if (held) count_region(*find_session(shard.owner), arena.regions.at(copy.region), -1);
    shard.copies[place].reset();
    release_region(arena, copy.region);
}

void Registry::drop_copy(Shard& shard, int place) {
    const ArenaId arena = shard.copies[place]->arena;
    const ArenaId home = shard.id.arena;
    release_copy(shard, place);
    // An arena that nobody has open is kept for the readers of what was moved there.
    if (arena != home) drop_if_unused(arena);
}

bool Registry::is_endangered(const Shard& shard, ArenaId arena) const {
    return shard.abandoned && arenas_.at(arena).endangered(shard.owner);
}

// Frees what nobody can be reading any more; asks to be called again for what is still read.
void Registry::sweep_shard(ShardId id) {
    Shard* shard = find_shard(id);
    const bool is_loose =
        shard != nullptr && (shard->retired || (shard->copies[0] && shard->copies[1]));
    if (!is_loose) loose_shards_.erase(id);
    if (!is_loose || !shard->settled || shard->move) return;  // their ends bring us here
    Arena& home = *find_arena(id.arena);
    for (int place = 0; place < 2; ++place) {
        const bool valid = !shard->retired && place == shard->current;
        if (valid || !shard->copies[place]) continue;
        if (is_read(*shard, place)) {
            shards_asked_ = true;
        } else if (!is_endangered(*shard, shard->copies[place]->arena)) {
            drop_copy(*shard, place);
            FAULT_POINT("shard.dropped");
        }
    }
    const bool gone = shard->retired && !shard->copies[0] && !shard->copies[1];
    if (!gone || !shard->readers.empty() || is_endangered(*shard, id.arena)) return;
    release_region(home, id.header);
    journal_.note(ShardEndRecord{raw(id.arena), raw(id.header)});
    shards_.erase(id);
    loose_shards_.erase(id);
}

void Registry::sweep_shards() {
    shards_due_ = TimePoint::max();
    shards_asked_ = false;
    // A copy: those that are gone leave the set.
    const std::vector<ShardId> ids(loose_shards_.begin(), loose_shards_.end());
    for (const ShardId id : ids) sweep_shard(id);
}

// The arena is going, and what lies in it. Its own regions are no longer counted, and the record of
// its end is written: nothing more is said of them. What follows from it for others is returned and
// not done: that may end further arenas, which must not meet half of this one.
Registry::LeftBehind Registry::forget_shards(ArenaId arena) {
    LeftBehind left;
    for (auto next = shards_.begin(); next != shards_.end();) {
        auto& [id, shard] = *next;
        bool lost = false;
        for (auto& copy : shard.copies) {
            if (!copy || copy->arena != arena) continue;
            lost = true;
            copy.reset();
        }
        if (id.arena != arena) {
            if (lost) left.lost_a_copy.push_back(id);
            ++next;
            continue;
        }
        for (int place = 0; place < 2; ++place) {
            if (!shard.copies[place]) continue;
            left.hosts.push_back(shard.copies[place]->arena);
            release_copy(shard, place);
        }
        loose_shards_.erase(id);
        next = shards_.erase(next);
    }
    return left;
}

void Registry::go_on_without(const LeftBehind& left) {
    for (const ShardId id : left.lost_a_copy) {
        if (Shard* const shard = find_shard(id); shard != nullptr) retire_shard(*shard);
    }
    // They may have been kept for a copy alone.
    for (const ArenaId id : left.hosts) drop_if_unused(id);
}

}  // namespace fabricd
