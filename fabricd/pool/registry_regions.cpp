// Registry: regions and tensors. Whose they are, and when their bytes may be given to others.

#include <algorithm>

#include "fabricd/pool/refusals.hpp"
#include "fabricd/pool/registry.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "libfabricshm/shm/tensor_header.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

Result<proto::Region> Registry::create_region(SessionId session, const proto::Region& request) {
    FABRIC_TRY(Arena * arena, arena_of(session, ArenaId{request.arena_id}));
    clear_way(session, *arena, request.bytes);
    FABRIC_TRY(const RegionId region,
               make_region(*find_session(session), *arena, request.bytes, std::nullopt));
    return arena->wire(region);
}

Result<proto::Region> Registry::open_region(SessionId session, const proto::Region& request) const {
    const auto arena = arenas_.find(ArenaId{request.arena_id});
    const Error gone{Errc::kNotFound, 0, "open region"};
    if (arena == arenas_.end() || arena->second.sessions.count(session) == 0) return gone;
    const Lease* lease = arena->second.leases.find(RegionId{request.region_id});
    // A quarantined region has lost its owner: for everybody but the groups' last stores it is
    // gone.
    if (lease == nullptr || lease->state != LeaseState::kHeld) return gone;
    if (is_ending(lease->session)) return gone;
    if (is_bad(arena->second, RegionId{request.region_id})) {
        return Error{Errc::kPoisoned, static_cast<int>(request.region_id), "open region"};
    }
    return arena->second.wire(RegionId{request.region_id});
}

Result<void> Registry::free_region(SessionId session, ArenaId id, RegionId region) {
    FABRIC_TRY(Arena * arena, arena_of(session, id));
    const Lease* lease = arena->leases.find(region);
    if (lease == nullptr || lease->state != LeaseState::kHeld) {
        return Error{Errc::kNotFound, 0, "free region"};
    }
    if (lease->session != session) return Error{Errc::kDenied, 0, "free region of another session"};
    const Region& found = arena->regions.at(region);
    // A shard's bytes are not its owner's alone: readers may hold them.
    if (found.shard) return Error{Errc::kDenied, 0, "free region of a shard"};
    count_region(*find_session(session), found, -1);
    release_region(*arena, region);
    return {};
}

Result<proto::Tensor> Registry::create_tensor(SessionId session, const proto::Tensor& request) {
    FABRIC_TRY(Arena * arena, arena_of(session, ArenaId{request.region.arena_id}));
    FABRIC_TRY(const Bytes elements,
               proto::tensor_bytes(request.dtype, std::span(request.shape, request.ndim)));
    TensorInfo info;
    info.name = request.name;
    info.dtype = request.dtype;
    info.ndim = request.ndim;
    std::copy_n(request.shape, request.ndim, info.shape);

    // Whoever opens it hears which process made it.
    const std::int32_t pid = find_session(session)->peer.pid;
    give_up_name(*arena, info.name);
    const auto named = arena->tensors.find(info.name);
    if (named != arena->tensors.end()) {
        const Region& found = arena->regions.at(named->second);
        // The daemon may have been killed between writing it down and answering; then its maker
        // asks again, and this is the answer that was lost.
        const bool own = arena->leases.find(named->second)->session == session;
        const bool same = found.tensor->dtype == info.dtype && found.tensor->ndim == info.ndim &&
                          std::equal(info.shape, std::end(info.shape), found.tensor->shape);
        if (found.recovered && own && same) return arena->wire_tensor(named->second, pid);
        return Error{Errc::kExists, 0, "create tensor"};
    }
    clear_way(session, *arena, elements + fabricshm::kTensorHeaderBytes);
    FABRIC_TRY(const RegionId region,
               make_region(*find_session(session), *arena, elements + fabricshm::kTensorHeaderBytes,
                           std::move(info)));
    answer_tensor(*arena, region);
    return arena->wire_tensor(region, pid);
}

Result<void> Registry::open_tensor(Ticket ticket, const proto::Tensor& request, TimePoint now) {
    FABRIC_TRY(Arena * arena, arena_of(ticket.session, ArenaId{request.region.arena_id}));
    const std::string name = request.name;
    give_up_name(*arena, name);
    const TimePoint deadline =
        fabricshm::deadline_after(now, std::chrono::milliseconds(request.timeout_ms));
    // Also when it is there already: one way for both.
    Wait wait{ticket, deadline, WaitKey{WaitKind::kTensor, arena->id, name, GroupId::kNone},
              proto::Type::kTensorOpen};
    FABRIC_TRY_VOID(add_wait(std::move(wait)));
    const auto named = arena->tensors.find(name);
    if (named != arena->tensors.end()) answer_tensor(*arena, named->second);
    return {};
}

void Registry::answer_tensor(Arena& arena, RegionId region) {
    const std::string& name = arena.regions.at(region).tensor->name;
    const Session* owner = find_session(arena.leases.find(region)->session);
    const std::int32_t pid = owner != nullptr ? owner->peer.pid : 0;
    const WaitKey key{WaitKind::kTensor, arena.id, name, GroupId::kNone};
    for (const WaitId id : waits_.with_key(key)) {
        const Wait wait = *waits_.take(id);
        Error state{Errc::kOk, 0, ""};
        if (is_bad(arena, region)) state = {Errc::kPoisoned, static_cast<int>(raw(region)), ""};
        answers_.push_back({wait.ticket, wait.asked, state, arena.wire_tensor(region, pid)});
    }
}

Result<RegionId> Registry::make_region(Session& session, Arena& arena, Bytes bytes,
                                       std::optional<TensorInfo> tensor,
                                       std::optional<ShardId> shard) {
    if (session.regions >= limits_.max_regions_per_session) {
        return refuse_count("regions of the session", "this session", "regions",
                            limits_.max_regions_per_session, "limits.regions_per_session");
    }
    // In whole units, as the arena gives them, so that quota and arena agree.
    const Bytes rounded = RegionAllocator::rounded(bytes);
    // Asking costs nothing: what the arena could not hold with any quota is no demand.
    if (rounded == 0) return refuse_hole("room in the arena", arena, bytes);
    if (rounded > arena.room()) return no_room("room in the arena", arena, bytes);
    if (!devices_.admits(session.device, rounded)) {
        // How much more a job could use is what quotas are resized by. What a full arena refuses
        // is none of it: a larger quota would not help.
        session.bytes_denied += bytes;
        devices_.refuse(session.device, bytes);
        return devices_.refusal(session.device, bytes);
    }
    const auto offset = arena.space.allocate(rounded);
    if (!offset) return no_room("room in the arena", arena, bytes);

    // The books first, the journal second, the answer last: a grant that cannot be written is taken
    // back, and a daemon that is killed in between never told anybody of it.
    const LeaseTable::Grant grant = arena.leases.grant(session.id);
    Region& region = arena.regions[grant.region];
    region = Region{*offset, rounded, std::move(tensor), false, session.device};
    if (shard) {
        const bool self = shard->header == RegionId::kNone;
        region.shard = {shard->arena, self ? grant.region : shard->header};
    }
    count_region(session, region, +1);
    if (region.tensor) arena.tensors[region.tensor->name] = grant.region;
    if (const auto written = record_region(arena, grant.region, journal_); !written.ok()) {
        undo_region(session, arena, grant.region);
        return written.error();
    }
    return grant.region;
}

Result<void> Registry::record_region(const Arena& arena, RegionId id, JournalSink& sink) {
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
    if (found == arena.regions.end()) return sink.add(record);  // free: its generation counts
    record.offset = found->second.offset;
    record.bytes = found->second.bytes;
    if (const auto& shard = found->second.shard) {
        record.shard_arena = raw(shard->first);
        record.shard_region = raw(shard->second);
    }
    if (found->second.tensor) {
        // Before the region's own record: one that says it is a tensor finds it.
        const TensorInfo& info = *found->second.tensor;
        TensorRecord tensor{raw(arena.id), raw(id), {}, info.dtype, info.ndim, {}};
        std::copy(std::begin(info.shape), std::end(info.shape), std::begin(tensor.shape));
        copy_name(tensor.name, info.name);
        FABRIC_TRY_VOID(sink.add(tensor));
        record.is_tensor = 1;
    }
    return sink.add(record);
}

// The journal could not take it: as if it had never been, but for the epoch, which only rises.
void Registry::undo_region(Session& session, Arena& arena, RegionId id) {
    const Region& region = arena.regions.at(id);
    count_region(session, region, -1);
    release_space(arena, region.offset, region.bytes);
    forget_tensor(arena, id);
    arena.leases.release(id);
    arena.regions.erase(id);
}

void Registry::count_region(Session& session, const Region& region, int change) {
    session.regions += change;
    session.bytes_owned += change > 0 ? region.bytes : -region.bytes;
    // What a dead session leaves in quarantine no longer counts: the device itself is free again.
    // A copy of a shard may count against another device than its owner's.
    if (change > 0) devices_.charge(region.device, region.bytes);
    if (change < 0) devices_.release(region.device, region.bytes);
}

void Registry::forget_tensor(Arena& arena, RegionId id) {
    const Region& region = arena.regions.at(id);
    if (!region.tensor) return;
    const auto named = arena.tensors.find(region.tensor->name);
    if (named != arena.tensors.end() && named->second == id) arena.tensors.erase(named);
}

void Registry::release_region(Arena& arena, RegionId id) {
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

void Registry::quarantine_region(Arena& arena, RegionId id) {
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

// Returns how many of `most` are left.
int Registry::reclaim_some(Session& session, Arena& arena, int most) {
    const JournalGuard::Batch batch(journal_);
    const std::set<RegionId>* held = &arena.leases.held_by(session.id);
    for (; most > 0 && !held->empty(); --most) {
        reclaim_region(session, arena, *held->begin());
        held = &arena.leases.held_by(session.id);
    }
    return most;
}

void Registry::reclaim_region(Session& session, Arena& arena, RegionId region) {
    // One verdict for all regions of the session: which of them a peer stores into is known to the
    // ranks alone.
    const bool endangered = arena.endangered(session.id);
    count_region(session, arena.regions.at(region), -1);
    if (endangered) quarantine_region(arena, region);
    if (!endangered) release_region(arena, region);
}

// Of a live session of the arena, which therefore stays.
void Registry::clear_way(SessionId session, const Arena& arena, Bytes bytes) {
    const Bytes rounded = RegionAllocator::rounded(bytes);
    const auto fits = [&] { return rounded <= arena.space.largest_hole(); };
    // In an arena that is smaller nothing that goes makes room for it.
    if (!fits() && rounded != 0 && rounded <= arena.bytes) settle_endings(arena.id, fits);
    const auto admits = [&] { return devices_.admits(find_session(session)->device, rounded); };
    if (!admits()) settle_endings(ArenaId::kNone, admits);
}

// A name that a session at its end still has is free, as if it were gone already.
void Registry::give_up_name(Arena& arena, const std::string& name) {
    if (ending_.empty()) return;
    const auto named = arena.tensors.find(name);
    if (named == arena.tensors.end()) return;
    const SessionId owner = arena.leases.find(named->second)->session;
    if (is_ending(owner)) reclaim_region(*find_session(owner), arena, named->second);
}

// Only the end of a group, or a shrink of it, ends a danger, and only to its members: of those who
// died, and are in no other group that does, the regions are free. Not all at once, for there can
// be tens of thousands.
void Registry::sweep_quarantine(Arena& arena, const std::vector<SessionId>& members) {
    for (const SessionId session : members) {
        const bool over =
            !arena.leases.quarantined_of(session).empty() && !arena.endangered(session);
        if (over) arena.freeing[session] = RegionId::kNone;
    }
    if (!arena.freeing.empty()) {
        freeing_.insert(arena.id);
        free_some(arena, limits_.freed_at_once);
    }
    sweep_shards();
}

// Returns how many of `most` are left to be freed elsewhere.
int Registry::free_some(Arena& arena, int most) {
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
        if (!arena.regions.at(*region).shard) release_region(arena, *region);
    }
    if (arena.freeing.empty()) freeing_.erase(arena.id);
    return most;
}

}  // namespace fabricd
