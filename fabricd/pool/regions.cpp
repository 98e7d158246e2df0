#include "fabricd/pool/regions.hpp"

#include <algorithm>

#include "fabricd/pool/losses.hpp"
#include "fabricd/pool/refusals.hpp"
#include "fabricd/pool/waits.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "libfabricshm/shm/tensor_header.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

namespace {

// Of a region that is held, and that has room for it.
bool is_tensor(const TensorRecord& tensor, const RegionRecord& region) {
    const bool held = region.state == static_cast<std::uint32_t>(LeaseState::kHeld);
    const bool named = ends_with_zero(tensor.name) && region.shard_region == 0;
    if (!held || !named || tensor.ndim > fabricshm::proto::kDimsMax) return false;
    const auto bytes =
        fabricshm::proto::tensor_bytes(tensor.dtype, std::span(tensor.shape, tensor.ndim));
    return bytes.ok() && *bytes <= region.bytes &&
           region.bytes - *bytes >= fabricshm::kTensorHeaderBytes;
}

TensorInfo info_of(const TensorRecord& record) {
    TensorInfo info;
    info.name = record.name;
    info.dtype = record.dtype;
    info.ndim = record.ndim;
    std::copy(std::begin(record.shape), std::end(record.shape), std::begin(info.shape));
    return info;
}

void forget_tensor(Arena& arena, RegionId id) {
    const Region& region = arena.regions.at(id);
    if (!region.tensor) return;
    const auto named = arena.tensors.find(region.tensor->name);
    if (named != arena.tensors.end() && named->second == id) arena.tensors.erase(named);
}

}  // namespace

Result<proto::Region> Regions::create(SessionId session, Arena& arena, Bytes bytes) {
    FABRIC_TRY(const RegionId region, make(books_.session(session), arena, bytes, std::nullopt));
    return arena.wire(region);
}

Result<proto::Region> Regions::open(SessionId session, const proto::Region& request) const {
    const auto arena = books_.arenas.find(ArenaId{request.arena_id});
    const Error gone{Errc::kNotFound, 0, "open region"};
    if (arena == books_.arenas.end() || arena->second.sessions.count(session) == 0) return gone;
    const Lease* lease = arena->second.leases.find(RegionId{request.region_id});
    // A quarantined region has lost its owner: for everybody but the groups' last stores it is
    // gone.
    if (lease == nullptr || lease->state != LeaseState::kHeld) return gone;
    if (books_.is_ending(lease->session)) return gone;
    if (is_bad(arena->second, RegionId{request.region_id})) {
        return Error{Errc::kPoisoned, static_cast<int>(request.region_id), "open region"};
    }
    return arena->second.wire(RegionId{request.region_id});
}

Result<void> Regions::free(SessionId session, ArenaId id, RegionId region,
                           std::uint64_t generation) {
    FABRIC_TRY(Arena * arena, books_.arena_written_by(session, id));
    const Lease* lease = arena->leases.find(region);
    const bool held = lease != nullptr && lease->state == LeaseState::kHeld;
    if (!held || (generation != 0 && lease->epoch != generation)) {
        return Error{Errc::kNotFound, 0, "free region"};
    }
    const Region& found = arena->regions.at(region);
    const bool lasting = found.tensor && found.tensor->lasting;
    if (lease->session != session && !lasting) {
        return Error{Errc::kDenied, 0, "free region of another session"};
    }
    // A shard's bytes are not its owner's alone: readers may hold them.
    if (found.shard) return Error{Errc::kDenied, 0, "free region of a shard"};
    count(books_.session(lease->session), found, -1);
    // Also what was its own alone: a process of a silent host may have been writing to it.
    if (!arena->dangers.given_up.empty()) {
        quarantine(*arena, region);
        return {};
    }
    release(*arena, region);
    return {};
}

Result<proto::Tensor> Regions::create_tensor(SessionId session, Arena& arena,
                                             const proto::Tensor& request, Bytes bytes,
                                             Effects& out) {
    TensorInfo info;
    info.name = request.name;
    info.dtype = request.dtype;
    info.ndim = request.ndim;
    std::copy_n(request.shape, request.ndim, info.shape);
    info.lasting = (request.flags & proto::kTensorLasting) != 0;

    // A session that opens it hears which process made it.
    const std::int32_t pid = books_.session(session).peer.pid;
    const auto named = arena.tensors.find(info.name);
    if (named != arena.tensors.end()) {
        const Region& found = arena.regions.at(named->second);
        // The daemon may have been killed between writing it down and answering; then its maker
        // asks again, and this is the answer that was lost.
        const bool own = arena.leases.find(named->second)->session == session;
        const bool same = found.tensor->dtype == info.dtype && found.tensor->ndim == info.ndim &&
                          std::equal(info.shape, std::end(info.shape), found.tensor->shape);
        if (own && same && info.lasting) {
            FABRIC_TRY_VOID(make_lasting(arena, named->second));
            return arena.wire_tensor(named->second, pid);
        }
        // A lasting one is in use: its holder may not even be its maker.
        const bool unseen = found.recovered && !found.tensor->lasting;
        if (unseen && own && same) return arena.wire_tensor(named->second, pid);
        return Error{Errc::kExists, 0, "create tensor"};
    }
    FABRIC_TRY(const RegionId region, make(books_.session(session), arena, bytes, std::move(info)));
    answer_tensor(arena, region, out);
    return arena.wire_tensor(region, pid);
}

bool Regions::has_tensor(const Arena& arena, const std::string& name) const {
    const auto named = arena.tensors.find(name);
    if (named == arena.tensors.end()) return false;
    const bool lasting = arena.regions.at(named->second).tensor->lasting;
    return lasting || !books_.is_ending(arena.leases.find(named->second)->session);
}

Result<void> Regions::make_lasting(Arena& arena, RegionId id) {
    TensorInfo& tensor = *arena.regions.at(id).tensor;
    if (tensor.lasting) return {};
    tensor.lasting = true;
    const auto written = write(arena, id, journal_);
    if (!written.ok()) tensor.lasting = false;
    return written;
}

Result<void> Regions::open_tensor(Ticket ticket, const proto::Tensor& request, TimePoint now,
                                  Effects& out) {
    FABRIC_TRY(Arena * arena,
               books_.arena_written_by(ticket.session, ArenaId{request.region.arena_id}));
    const std::string name = request.name;
    give_up_name(*arena, name);
    const TimePoint deadline =
        fabricshm::deadline_after(now, std::chrono::milliseconds(request.timeout_ms));
    // Also when it is there already: one way for both.
    Wait wait{ticket, deadline, WaitKey{WaitKind::kTensor, arena->id, name, GroupId::kNone},
              proto::Type::kTensorOpen};
    FABRIC_TRY_VOID(add_wait(books_, std::move(wait)));
    const auto named = arena->tensors.find(name);
    if (named != arena->tensors.end()) answer_tensor(*arena, named->second, out);
    return {};
}

void Regions::answer_tensor(Arena& arena, RegionId region, Effects& out) {
    const std::string& name = arena.regions.at(region).tensor->name;
    const Session* owner = books_.find_session(arena.leases.find(region)->session);
    const std::int32_t pid = owner != nullptr ? owner->peer.pid : 0;
    const WaitKey key{WaitKind::kTensor, arena.id, name, GroupId::kNone};
    for (const WaitId id : books_.waits.with_key(key)) {
        const Wait wait = *books_.waits.take(id);
        Error state{Errc::kOk, 0, ""};
        if (is_bad(arena, region)) state = {Errc::kPoisoned, static_cast<int>(raw(region)), ""};
        out.answers.push_back({wait.ticket, wait.asked, state, arena.wire_tensor(region, pid)});
    }
}

// Asking costs nothing: what the arena could not hold with any quota is no demand.
Result<void> Regions::check_room(Session& session, const Arena& arena, Bytes bytes) {
    const Bytes rounded = RegionAllocator::rounded(bytes);
    if (rounded == 0) return refuse_hole("room in the arena", arena, bytes);
    if (rounded > arena.room()) return growth_.no_room("room in the arena", arena, bytes);
    if (books_.devices.admits(session.device, rounded)) return {};
    // How much more a job could use is what quotas are resized by. What a full arena refuses
    // is none of it: a larger quota would not help.
    session.bytes_denied += bytes;
    books_.devices.refuse(session.device, bytes);
    return books_.devices.refusal(session.device, bytes);
}

Result<RegionId> Regions::make(Session& session, Arena& arena, Bytes bytes,
                               std::optional<TensorInfo> tensor, std::optional<ShardId> shard) {
    if (session.regions >= books_.limits.max_regions_per_session) {
        return refuse_count("regions of the session", "this session", "regions",
                            books_.limits.max_regions_per_session, "limits.regions_per_session");
    }
    FABRIC_TRY_VOID(check_room(session, arena, bytes));
    // In whole units, as the arena gives them, so that quota and arena agree.
    const Bytes rounded = RegionAllocator::rounded(bytes);
    const auto offset = arena.space.allocate(rounded);
    if (!offset) return growth_.no_room("room in the arena", arena, bytes);

    // The state first, the journal second, the answer last: a grant that cannot be written is
    // undone, and a daemon that is killed in between never announced it.
    const LeaseTable::Grant grant = arena.leases.grant(session.id);
    Region& region = arena.regions[grant.region];
    region = Region{*offset, rounded, std::move(tensor), false, session.device};
    if (shard) {
        const bool self = shard->header == RegionId::kNone;
        region.shard = {shard->arena, self ? grant.region : shard->header};
    }
    count(session, region, +1);
    if (books_.caches_apart && !session.peer.is_remote()) arena.files.cached.add(*offset, rounded);
    if (region.tensor) arena.tensors[region.tensor->name] = grant.region;
    if (const auto written = write(arena, grant.region, journal_); !written.ok()) {
        undo(session, arena, grant.region);
        return written.error();
    }
    return grant.region;
}

// `device` is a copy, since callers give the owner's own, which is exchanged below.
Result<RegionId> Regions::make_copy(Session& owner, Arena& arena, Bytes bytes, std::string device,
                                    ShardId shard) {
    if (!books_.devices.admits(device, RegionAllocator::rounded(bytes))) {
        return books_.devices.refusal(device, bytes);
    }
    // make() counts against the owner's device, whose quota it need not fit.
    const std::string own = std::exchange(owner.device, std::move(device));
    auto region = make(owner, arena, bytes, std::nullopt, shard);
    owner.device = own;
    return region;
}

RegionRecord Regions::record_of(const Arena& arena, RegionId id) {
    const Lease& lease = *arena.leases.find(id);
    RegionRecord record{raw(arena.id),
                        raw(id),
                        lease.epoch,
                        raw(lease.session),
                        0,
                        0,
                        static_cast<std::uint32_t>(lease.state),
                        0,
                        0,
                        0};
    const auto found = arena.regions.find(id);
    if (found == arena.regions.end()) return record;  // free: its generation counts
    record.offset = found->second.offset;
    record.bytes = found->second.bytes;
    if (const auto& shard = found->second.shard) {
        record.shard_arena = raw(shard->first);
        record.shard_region = raw(shard->second);
    }
    if (const auto& tensor = found->second.tensor) {
        record.is_tensor = tensor->lasting ? kTensorOfArena : kTensorOfSession;
    }
    return record;
}

Result<void> Regions::write(const Arena& arena, RegionId id, JournalSink& sink) {
    const RegionRecord record = record_of(arena, id);
    if (record.is_tensor != 0) {
        // Before the region's own record: one that says it is a tensor finds it.
        const TensorInfo& info = *arena.regions.at(id).tensor;
        TensorRecord tensor{raw(arena.id), raw(id), {}, info.dtype, info.ndim, {}};
        std::copy(std::begin(info.shape), std::end(info.shape), std::begin(tensor.shape));
        copy_name(tensor.name, info.name);
        FABRIC_TRY_VOID(sink.add(tensor));
    }
    return sink.add(record);
}

// The journal could not take it: as if it had never been, but for the epoch, which only rises.
void Regions::undo(Session& session, Arena& arena, RegionId id) {
    const Region& region = arena.regions.at(id);
    count(session, region, -1);
    release_space(arena, region.offset, region.bytes);
    forget_tensor(arena, id);
    arena.leases.release(id);
    arena.regions.erase(id);
}

void Regions::count(Session& session, const Region& region, int change) {
    FABRIC_CHECK(change > 0 || (session.regions > 0 && session.bytes_owned >= region.bytes));
    session.regions += change;
    session.bytes_owned += change > 0 ? region.bytes : -region.bytes;
    // What a dead session leaves in quarantine no longer counts: the device itself is free again.
    // A copy of a shard may count against another device than its owner's.
    if (change > 0) books_.devices.charge(region.device, region.bytes);
    if (change < 0) books_.devices.release(region.device, region.bytes);
}

void Regions::release(Arena& arena, RegionId id) {
    FAULT_POINT("reclaim.region");
    forget_tensor(arena, id);
    const Region region = arena.regions.at(id);
    const bool rested = arena.leases.find(id)->state == LeaseState::kQuarantined;
    if (rested) arena.bytes_quarantined -= region.bytes;
    arena.leases.release(id);
    release_space(arena, region.offset, region.bytes);
    arena.regions.erase(id);
    const RegionRecord record{raw(arena.id),
                              raw(id),
                              arena.leases.find(id)->epoch,
                              0,
                              0,
                              0,
                              static_cast<std::uint32_t>(LeaseState::kFree),
                              0,
                              0,
                              0};
    journal_.note(record);
}

void Regions::quarantine(Arena& arena, RegionId id) {
    FAULT_POINT("reclaim.quarantine");
    // The name is free at once: a restarted job makes its tensors again while the survivors of the
    // old one are still leaving.
    forget_tensor(arena, id);
    Region& region = arena.regions.at(id);
    region.tensor.reset();
    if (arena.leases.quarantine(id)) arena.bytes_quarantined += region.bytes;
    const Lease& lease = *arena.leases.find(id);
    const auto shard = region.shard.value_or(std::pair{ArenaId::kNone, RegionId::kNone});
    journal_.note(RegionRecord{raw(arena.id), raw(id), lease.epoch, raw(lease.session),
                               region.offset, region.bytes,
                               static_cast<std::uint32_t>(LeaseState::kQuarantined), 0,
                               raw(shard.first), raw(shard.second)});
}

int Regions::reclaim_some(Session& session, Arena& arena, int most) {
    const JournalGuard::Batch batch(journal_);
    const std::set<RegionId>* held = &arena.leases.held_by(session.id);
    Session* const heir = held->empty() ? nullptr : heir_of(session, arena);
    for (; most > 0 && !held->empty(); --most) {
        reclaim(session, arena, *held->begin(), heir);
        held = &arena.leases.held_by(session.id);
    }
    return most;
}

// Another session that stays: which of them does not matter. nullptr: the arena goes as well.
Session* Regions::heir_of(const Session& session, const Arena& arena) {
    for (const SessionId id : arena.sessions) {
        if (id == session.id || books_.is_ending(id) || books_.is_leaving(id, arena.id)) continue;
        if (arena.dangers.given_up.count(id) != 0) continue;
        return &books_.session(id);
    }
    return nullptr;
}

void Regions::reclaim(Session& session, Arena& arena, RegionId id, Session* heir) {
    const Region& region = arena.regions.at(id);
    if (heir != nullptr && region.tensor && region.tensor->lasting) {
        hand_over(session, *heir, arena, id);
        return;
    }
    // One verdict for all regions of the session: which of them a peer stores into is known to the
    // ranks alone.
    const bool endangered = arena.endangered(session.id);
    count(session, region, -1);
    if (endangered) quarantine(arena, id);
    if (!endangered) release(arena, id);
}

// Its bytes are in use, so no quota is asked; the device of the new holder pays.
void Regions::hand_over(Session& from, Session& to, Arena& arena, RegionId id) {
    FAULT_POINT("reclaim.hand_over");
    Region& region = arena.regions.at(id);
    count(from, region, -1);
    region.device = to.device;
    count(to, region, +1);
    FABRIC_CHECK(arena.leases.hand_over(id, to.id));
    journal_.note(record_of(arena, id));
}

bool Regions::fits(const Arena& arena, Bytes bytes) const {
    return RegionAllocator::rounded(bytes) <= arena.space.largest_hole();
}

bool Regions::quota_admits(SessionId session, Bytes bytes) const {
    return books_.devices.admits(books_.session(session).device, RegionAllocator::rounded(bytes));
}

void Regions::give_up_name(Arena& arena, const std::string& name) {
    if (books_.ending.empty()) return;
    const auto named = arena.tensors.find(name);
    if (named == arena.tensors.end()) return;
    const SessionId owner = arena.leases.find(named->second)->session;
    if (!books_.is_ending(owner)) return;
    Session& ending = books_.session(owner);
    reclaim(ending, arena, named->second, heir_of(ending, arena));
}

// Only the end of a group, or a shrink of it, ends a danger, and only to its members: of those that
// died, and are in no other group that does, the regions are free. Not all at once, for there can
// be tens of thousands.
void Regions::sweep_quarantine(Arena& arena, const std::vector<SessionId>& members) {
    for (const SessionId session : members) {
        const bool over =
            !arena.leases.quarantined_of(session).empty() && !arena.endangered(session);
        if (over) arena.freeing[session] = RegionId::kNone;
    }
    if (!arena.freeing.empty()) {
        books_.freeing.insert(arena.id);
        free_some(arena, books_.limits.freed_at_once);
    }
}

int Regions::free_some(Arena& arena, int most) {
    const JournalGuard::Batch batch(journal_);
    while (most > 0 && !arena.freeing.empty()) {
        const auto session = arena.freeing.begin();
        const std::set<RegionId>& left = arena.leases.quarantined_of(session->first);
        const auto region = left.upper_bound(session->second);
        // The group before one that failed may have been opened again.
        if (region == left.end() || arena.endangered(session->first)) {
            arena.freeing.erase(session);
            continue;
        }
        session->second = *region;
        --most;
        // A shard's readers have to be gone as well.
        if (!arena.regions.at(*region).shard) release(arena, *region);
    }
    if (arena.freeing.empty()) books_.freeing.erase(arena.id);
    return most;
}

Result<void> Regions::restore(const ArenaImage& image, Arena& arena) {
    for (const auto& [id, record] : image.regions) {
        const auto state = static_cast<LeaseState>(record.state);
        const Lease lease{SessionId{record.session}, record.generation, state};
        if (record.state > 2 || !arena.leases.restore(id, lease)) return kContradiction;
        // A free id keeps its generation, that is all of it.
        if (state == LeaseState::kFree) continue;
        // This is where two owners of the same bytes would be found out.
        if (!arena.space.reserve(record.offset, record.bytes)) return kContradiction;
        if (state == LeaseState::kQuarantined) arena.bytes_quarantined += record.bytes;
        Region& region = arena.regions[id];
        region = Region{record.offset, record.bytes, std::nullopt, true, ""};
        if (record.shard_region != 0) {
            region.shard = {ArenaId{record.shard_arena}, RegionId{record.shard_region}};
        }
        if (record.is_tensor != 0) {
            const auto described = image.tensors.find(id);
            if (described == image.tensors.end()) return kContradiction;
            // A checksum says that it was written so, not that a daemon of this build wrote it.
            const TensorRecord& tensor = described->second;
            if (!is_tensor(tensor, record) || record.is_tensor > kTensorOfArena)
                return kContradiction;
            region.tensor = info_of(tensor);
            region.tensor->lasting = record.is_tensor == kTensorOfArena;
            if (!arena.tensors.emplace(region.tensor->name, id).second) return kContradiction;
        }
        if (state != LeaseState::kHeld) continue;
        Session* owner = books_.find_session(lease.session);
        if (owner == nullptr || arena.sessions.count(lease.session) == 0) return kContradiction;
        region.device = owner->device;
        count(*owner, region, +1);
    }
    return {};
}

}  // namespace fabricd
