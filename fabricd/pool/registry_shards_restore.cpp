// Registry: shards after a restart. A move that the crash cut off is finished or undone.

#include <algorithm>

#include "fabricd/pool/registry.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

using fabricshm::ShardHeader;

namespace {

ShardHeader& header_in(const ArenaSpan& span) {
    return *reinterpret_cast<ShardHeader*>(span.data);
}

}  // namespace

ShardRecord Registry::record_of(const Shard& shard) const {
    ShardRecord record{};
    record.arena = raw(shard.id.arena);
    record.region = raw(shard.id.header);
    record.generation = shard.generation;
    record.session = raw(shard.owner);
    for (int place = 0; place < 2; ++place) {
        const auto& copy = shard.copies[place];
        if (!copy) continue;
        ShardRecord::Copy& written = record.copies[place];
        written.arena = raw(copy->arena);
        written.region = raw(copy->region);
        written.generation = copy->generation;
        copy_name(written.device, arenas_.at(copy->arena).regions.at(copy->region).device);
    }
    std::copy(std::begin(shard.info.shape), std::end(shard.info.shape), std::begin(record.shape));
    record.dtype = shard.info.dtype;
    record.ndim = shard.info.ndim;
    record.current = static_cast<std::uint32_t>(shard.current);
    record.fixed = shard.fixed ? 1 : 0;
    copy_name(record.name, shard.info.name);
    return record;
}

Result<void> Registry::write_shard(const Shard& shard, JournalSink& sink) const {
    FABRIC_TRY_VOID(sink.add(record_of(shard)));
    for (const auto& [session, book] : shard.readers) {
        FABRIC_TRY_VOID(
            sink.add(ShardReaderRecord{raw(shard.id.arena), raw(shard.id.header), raw(session),
                                       static_cast<std::uint32_t>(book.slot), 1}));
    }
    return {};
}

Result<void> Registry::restore_shards(const PoolImage& image) {
    for (const auto& [id, stored] : image.shards) {
        const ShardRecord& record = stored.record;
        const auto ends = [](const char(&field)[fabricshm::proto::kNameBytes]) {
            return field[sizeof field - 1] == '\0';
        };
        const bool sound =
            ends(record.name) && ends(record.copies[0].device) && ends(record.copies[1].device);
        if (!sound) return Error{Errc::kCorrupt, 0, "restore shard"};
        restore_shard(stored);
    }
    // Regions that say they are a shard's, but whose shard does not say so: granted right before
    // the crash, or let go of. Nobody was told of them.
    for (auto& [arena_id, arena] : arenas_) {
        std::vector<RegionId> orphans;
        for (const auto& [id, region] : arena.regions) {
            if (!region.shard) continue;
            const Shard* shard = find_shard({region.shard->first, region.shard->second});
            const auto names = [&, region_id = id](const auto& copy) {
                return copy && copy->arena == arena_id && copy->region == region_id;
            };
            const bool header = shard != nullptr && shard->id == ShardId{arena_id, id};
            const bool copy = shard != nullptr && std::any_of(std::begin(shard->copies),
                                                              std::end(shard->copies), names);
            if (!header && !copy) orphans.push_back(id);
        }
        for (const RegionId id : orphans) {
            const Lease& lease = *arena.leases.find(id);
            Session* owner =
                lease.state == LeaseState::kHeld ? find_session(lease.session) : nullptr;
            if (owner != nullptr) count_region(*owner, arena.regions.at(id), -1);
            release_region(arena, id);
        }
    }
    return {};
}

void Registry::restore_shard(const ShardImage& image) {
    const ShardRecord& record = image.record;
    const ShardId id{ArenaId{record.arena}, RegionId{record.region}};
    Arena* home = find_arena(id.arena);
    const Lease* lease = home == nullptr ? nullptr : home->leases.find(id.header);
    const bool there = lease != nullptr && lease->epoch == record.generation &&
                       lease->state != LeaseState::kFree && home->regions.count(id.header) != 0;
    if (!there) return;
    Shard shard;
    shard.id = id;
    shard.generation = record.generation;
    shard.owner = SessionId{record.session};
    shard.info = TensorInfo{record.name, record.dtype, record.ndim, {}};
    std::copy(std::begin(record.shape), std::end(record.shape), std::begin(shard.info.shape));
    const auto bytes = fabricshm::proto::tensor_bytes(
        record.dtype,
        std::span(record.shape, std::min<std::size_t>(record.ndim, fabricshm::proto::kDimsMax)));
    shard.bytes = bytes.ok() ? *bytes : 0;
    shard.fixed = record.fixed != 0;
    shard.retired = lease->state == LeaseState::kQuarantined;
    shard.abandoned = shard.retired && home->sessions.count(shard.owner) == 0;
    shard.recovered = true;
    shard.settled = false;
    shard.current = static_cast<int>(record.current);
    for (int place = 0; place < 2; ++place) {
        const ShardRecord::Copy& copy = record.copies[place];
        if (!restore_copy(shard, copy)) continue;
        shard.copies[place] = {ArenaId{copy.arena}, RegionId{copy.region}, copy.generation};
    }
    // Only one whose end was begun can lack its elements.
    if (!shard.copies[shard.current] && !shard.retired) return;
    for (const auto& [session, slot] : image.readers) {
        const bool present = home->sessions.count(session) != 0;
        if (present) shard.readers[session] = {static_cast<int>(slot), 1, true};
    }
    if (!shard.retired) home->shards[shard.info.name] = id.header;
    shards_[id] = std::move(shard);
}

// True when the copy is still there; then it counts against the device that the record says.
bool Registry::restore_copy(const Shard& shard, const ShardRecord::Copy& copy) {
    Arena* arena = find_arena(ArenaId{copy.arena});
    const RegionId region{copy.region};
    const Lease* lease = arena == nullptr ? nullptr : arena->leases.find(region);
    const bool there = lease != nullptr && lease->epoch == copy.generation &&
                       lease->state != LeaseState::kFree && arena->regions.count(region) != 0;
    if (!there) return false;
    Region& found = arena->regions.at(region);
    if (lease->state == LeaseState::kHeld) devices_.release(found.device, found.bytes);
    found.device = copy.device;
    if (lease->state == LeaseState::kHeld) devices_.charge(found.device, found.bytes);
    // One retired half-way is retired: its owner may have been told.
    return find_session(shard.owner) != nullptr || lease->state == LeaseState::kQuarantined;
}

void Registry::format_again(const Shard& shard) {
    if (!shard.copies[0] || !format_shard(shard).ok()) return;
    const auto span = header_of(shard);
    for (const auto& [session, book] : shard.readers) {
        if (span.ok()) fabricshm::assign_reader(header_in(*span), book.slot, raw(session));
    }
}

// The arena's memory is here again. Where a move was cut off, the word says whether the new copy
// had become the valid one; the other one goes. Any client could have written that word: it can
// choose between the two copies that the books know, both of them its own job's.
void Registry::settle_shards(const Arena& arena) {
    for (auto& [id, shard] : shards_) {
        if (id.arena != arena.id) continue;
        const auto span = header_of(shard);
        if (!span.ok()) continue;
        ShardHeader& header = header_in(*span);
        const fabricshm::PoisonGuard guard;
        // The daemon was killed between writing it down and making its header.
        const fabricshm::ShardKey key{raw(id.header), shard.generation};
        if (!shard.retired && !fabricshm::is_shard(header, key)) format_again(shard);
        const int valid = fabricshm::word_of(header).place();
        if (shard.copies[valid]) shard.current = valid;
        shard.settled = true;
        std::set<int> taken;
        for (const auto& [session, book] : shard.readers) taken.insert(book.slot);
        // Lines of those who died or left while nobody could write here.
        for (int slot = 0; slot < fabricshm::kShardReadersMax; ++slot) {
            if (taken.count(slot) == 0) fabricshm::assign_reader(header, slot, 0);
        }
        if (shard.retired) fabricshm::retire_shard(header);
        FAULT_POINT("move.settled");
        if (!shard.retired) journal_.note(record_of(shard));
    }
    sweep_shards();
}

}  // namespace fabricd
