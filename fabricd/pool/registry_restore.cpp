// Registry: what the journal brings back after a restart, and what goes into a fresh journal.

#include <algorithm>
#include <cstring>

#include "fabricd/pool/registry.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "libfabricshm/shm/tensor_header.hpp"

namespace fabricd {

namespace {

constexpr Error kContradiction{Errc::kCorrupt, 0, "restore from journal"};

bool ends_with_zero(const char (&field)[fabricshm::proto::kNameBytes]) {
    return field[sizeof field - 1] == '\0';
}

// Of a region that somebody holds, and that has room for it.
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

}  // namespace

Result<void> Registry::restore(const PoolImage& image, TimePoint now, Duration grace) {
    // Ids go on above everything the journal ever mentioned, and the epoch above its last: what a
    // client kept from before can be told from what it gets now.
    grace_ = grace;
    daemon_epoch_ = image.daemon_epoch + 1;
    last_id_ = image.last_id;
    FABRIC_TRY_VOID(restore_sessions(image, now));
    for (const auto& [id, arena] : image.arenas) FABRIC_TRY_VOID(restore_arena(arena));
    FABRIC_TRY_VOID(restore_shards(image));
    FABRIC_TRY_VOID(restore_quotas(image, now));
    // What no single record shows; after this the books are as good as ones that were kept.
    if (const auto wrong = contradictions(); !wrong.empty()) {
        fabricshm::log(fabricshm::LogLevel::kError, "journal: %s", wrong.front().c_str());
        return kContradiction;
    }
    // Before anybody can resume: what was begun is finished.
    for (const SessionId id : image.ending) end_session(id, "its end had begun before the restart");
    if (arenas_.empty()) return {};
    // Arenas that no session had open can be presented by nobody: the daemon was killed while it
    // dropped them. What the device itself remembers is found before anything expires.
    const bool claimable = std::any_of(arenas_.begin(), arenas_.end(), [](const auto& arena) {
        return !arena.second.sessions.empty();
    });
    away_until_ = claimable ? fabricshm::deadline_after(now, grace) : now;
    return {};
}

Result<void> Registry::restore_sessions(const PoolImage& image, TimePoint now) {
    for (const auto& [id, record] : image.sessions) {
        if (!ends_with_zero(record.label) || !ends_with_zero(record.device)) return kContradiction;
        Session& session = sessions_[id];
        session.id = id;
        std::copy(std::begin(record.token), std::end(record.token), session.token.begin());
        session.peer = Peer{record.pid, record.uid, record.gid};
        session.label = record.label;
        session.device = record.device;
        // It may be gone from the device file.
        devices_.restore(session.device);
        // Monotonic time does not outlive a start: ages begin again.
        session.since = now;
        session.lost_until = fabricshm::deadline_after(now, grace_);
        lost_.emplace(session.lost_until, id);
        quotas_.restore_session(record.uid);
    }
    return {};
}

Result<void> Registry::restore_arena(const ArenaImage& image) {
    const ArenaRecord& record = image.record;
    if (!ends_with_zero(record.name)) return kContradiction;
    const ArenaId id{record.arena};
    Arena& arena = arenas_[id];
    arena.id = id;
    arena.name = record.name;
    arena.uid = record.uid;
    // Until a session presents its file.
    arena.state = ArenaState::kAway;
    arena.bytes = record.bytes;
    arena.align = record.align;
    arena.huge_page_bytes = record.huge_page_bytes;
    arena.file_offset = record.file_offset;
    arena.identity = {record.device, record.inode, record.file_bytes, record.seals};
    arena.link_bytes = record.link_bytes;
    arena.committed = image.committed.value_or(record.bytes);
    arena.space = RegionAllocator(arena.committed);
    // At the start of the arena.
    if (record.link_bytes != 0 && !arena.space.reserve(0, record.link_bytes)) return kContradiction;
    // Two arenas of one name: one of them must have ended without a record.
    if (!arena_names_.emplace(arena.name, id).second) return kContradiction;
    quotas_.restore_arena(arena.uid, arena.committed);
    for (const SessionId member : image.sessions) {
        // A session whose end was written down before its last arena was left does not exist.
        Session* session = find_session(member);
        if (session == nullptr) return kContradiction;
        arena.sessions.insert(member);
        session->arenas.insert(id);
    }
    FABRIC_TRY_VOID(restore_regions(image, arena));
    FABRIC_TRY_VOID(restore_groups(image, arena));
    // After who holds what is known: what of it is free is taken, the rest when it comes back.
    for (const LostRecord& lost : image.lost) {
        const bool inside = lost.offset <= arena.bytes && lost.bytes <= arena.bytes - lost.offset;
        const bool on_units = lost.offset % RegionAllocator::kUnit == 0 &&
                              lost.bytes % RegionAllocator::kUnit == 0 && lost.bytes != 0;
        if (!inside || !on_units) return kContradiction;
        take_lost(arena, lost.offset, lost.bytes);
    }
    return {};
}

Result<void> Registry::restore_regions(const ArenaImage& image, Arena& arena) {
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
            if (!is_tensor(tensor, record)) return kContradiction;
            region.tensor = info_of(tensor);
            if (!arena.tensors.emplace(region.tensor->name, id).second) return kContradiction;
        }
        if (state != LeaseState::kHeld) continue;
        Session* owner = find_session(lease.session);
        if (owner == nullptr || arena.sessions.count(lease.session) == 0) return kContradiction;
        region.device = owner->device;
        count_region(*owner, region, +1);
    }
    return {};
}

Result<void> Registry::restore_groups(const ArenaImage& image, Arena& arena) {
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
            // Who leaves the arena has left its groups or is dead in them, and that came first.
            const bool present = arena.sessions.count(member.session) != 0;
            if (member.state == MemberState::kLive && !present) return kContradiction;
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

bool Registry::found_in_pool(ArenaId id, fabricshm::PoolPiece piece) {
    Arena* arena = find_arena(id);
    // Of another size it is not the arena that the journal means.
    if (arena == nullptr || piece.bytes != arena->bytes) return false;
    arena_adopted(id, std::move(piece));
    return true;
}

// The grace is over: who asks for the same thing again now really means a second one.
void Registry::forget_recovery() {
    for (auto& [arena_id, arena] : arenas_) {
        for (auto& [id, region] : arena.regions) region.recovered = false;
        for (auto& [id, group] : arena.groups) group.recovered = false;
    }
    for (auto& [id, shard] : shards_) shard.recovered = false;
}

Result<void> Registry::write_journal(JournalSink& sink) const {
    // First: check_start() takes no journal without it.
    FABRIC_TRY_VOID(
        sink.add(StartRecord{kJournalMagic, daemon_epoch_, last_id_, kJournalVersion, 0}));
    for (const auto& [id, session] : sessions_) {
        FABRIC_TRY_VOID(sink.add(record_of(session)));
        // Else it would be waited for after a restart, with half of what it had.
        if (session.ending) FABRIC_TRY_VOID(sink.add(SessionEndingRecord{raw(id)}));
    }
    for (const auto& [id, arena] : arenas_) {
        // Nobody has been told of it; if its making succeeds, that appends its record.
        if (arena.state == ArenaState::kMaking) continue;
        FABRIC_TRY_VOID(write_arena(arena, sink));
    }
    for (const auto& [id, shard] : shards_) FABRIC_TRY_VOID(write_shard(shard, sink));
    return write_quotas(sink);
}

Result<void> Registry::write_arena(const Arena& arena, JournalSink& sink) const {
    // The arena before what lies in it.
    FABRIC_TRY_VOID(sink.add(record_of(arena)));
    if (arena.committed < arena.bytes) {
        FABRIC_TRY_VOID(sink.add(ArenaGrownRecord{raw(arena.id), arena.committed}));
    }
    for (const SessionId session : arena.sessions) {
        FABRIC_TRY_VOID(sink.add(ArenaJoinRecord{raw(arena.id), raw(session)}));
    }
    for (const auto& [id, lease] : arena.leases.all()) {
        FABRIC_TRY_VOID(record_region(arena, id, sink));
    }
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
    for (const auto& [offset, bytes] : arena.lost.all()) {
        FABRIC_TRY_VOID(sink.add(LostRecord{raw(arena.id), offset, bytes}));
    }
    return {};
}

}  // namespace fabricd
