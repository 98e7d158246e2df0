// Shards: after a restart. A move that the crash cut off is finished or undone.

#include <algorithm>

#include "fabricd/pool/shards.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

using fabricshm::kShardHeaderBytes;
using fabricshm::ShardHeader;

namespace {

constexpr Error kShardContradicts{Errc::kCorrupt, 0, "restore shard"};

bool is_sound(const ShardRecord& record) {
    const auto ends = [](const char(&field)[fabricshm::proto::kNameBytes]) {
        return field[sizeof field - 1] == '\0';
    };
    if (record.ndim > fabricshm::proto::kDimsMax) return false;
    return ends(record.name) && ends(record.copies[0].device) && ends(record.copies[1].device) &&
           fabricshm::proto::tensor_bytes(record.dtype, std::span(record.shape, record.ndim)).ok();
}

Bytes bytes_of(const ShardRecord& record) {
    return *fabricshm::proto::tensor_bytes(record.dtype, std::span(record.shape, record.ndim));
}

// The region that a record means; nullptr when it is free or used again since.
Region* still_there(Arena* arena, RegionId id, std::uint64_t generation) {
    const Lease* lease = arena == nullptr ? nullptr : arena->leases.find(id);
    const bool there = lease != nullptr && lease->epoch == generation &&
                       lease->state != LeaseState::kFree && arena->regions.count(id) != 0;
    return there ? &arena->regions.at(id) : nullptr;
}

Result<void> restore_readers(const ShardImage& image, const Arena& home, Shard& shard) {
    std::set<std::uint32_t> taken;
    for (const auto& [session, slot] : image.readers) {
        const bool free = slot < fabricshm::kShardReadersMax && taken.insert(slot).second;
        if (!free) return kShardContradicts;
        const bool present = home.sessions.count(session) != 0;
        if (present) shard.readers[session] = {static_cast<int>(slot), 1, true};
    }
    return {};
}

}  // namespace

ShardRecord record_of(const Books& books, const Shard& shard) {
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
        copy_name(written.device, books.arena(copy->arena).regions.at(copy->region).device);
    }
    std::copy(std::begin(shard.info.shape), std::end(shard.info.shape), std::begin(record.shape));
    record.dtype = shard.info.dtype;
    record.ndim = shard.info.ndim;
    record.current = static_cast<std::uint32_t>(shard.current);
    record.fixed = shard.fixed ? 1 : 0;
    copy_name(record.name, shard.info.name);
    return record;
}

Result<void> Shards::write(const Shard& shard, JournalSink& sink) const {
    FABRIC_TRY_VOID(sink.add(record_of(books_, shard)));
    for (const auto& [session, book] : shard.readers) {
        FABRIC_TRY_VOID(
            sink.add(ShardReaderRecord{raw(shard.id.arena), raw(shard.id.header), raw(session),
                                       static_cast<std::uint32_t>(book.slot), 1}));
    }
    return {};
}

Result<void> Shards::restore(const PoolImage& image) {
    for (const auto& [id, stored] : image.shards) FABRIC_TRY_VOID(restore_shard(stored));
    for (auto& [id, arena] : books_.arenas) free_orphans(arena);
    return {};
}

// Regions that say they are a shard's, but whose shard does not say so: granted right before the
// crash, or let go of. No client heard of them.
void Shards::free_orphans(Arena& arena) {
    std::vector<RegionId> orphans;
    for (const auto& [id, region] : arena.regions) {
        if (!region.shard) continue;
        const Shard* shard = books_.find_shard({region.shard->first, region.shard->second});
        const auto names = [home = arena.id, lodger = id](const auto& copy) {
            return copy && copy->arena == home && copy->region == lodger;
        };
        const bool header = shard != nullptr && shard->id == ShardId{arena.id, id};
        const bool copy = shard != nullptr &&
                          std::any_of(std::begin(shard->copies), std::end(shard->copies), names);
        if (!header && !copy) orphans.push_back(id);
    }
    for (const RegionId id : orphans) {
        const Lease& lease = *arena.leases.find(id);
        Session* owner =
            lease.state == LeaseState::kHeld ? books_.find_session(lease.session) : nullptr;
        if (owner != nullptr) regions_.count(*owner, arena.regions.at(id), -1);
        regions_.release(arena, id);
    }
}

Result<void> Shards::restore_shard(const ShardImage& image) {
    const ShardRecord& record = image.record;
    if (!is_sound(record)) return kShardContradicts;
    const ShardId id{ArenaId{record.arena}, RegionId{record.region}};
    Arena* home = books_.find_arena(id.arena);
    const Region* header = still_there(home, id.header, record.generation);
    if (header == nullptr) return {};
    const Lease* lease = home->leases.find(id.header);
    const bool is_its_own = header->shard == std::pair{id.arena, id.header} &&
                            header->bytes >= kShardHeaderBytes &&
                            lease->session == SessionId{record.session};
    if (!is_its_own) return kShardContradicts;
    Shard shard;
    shard.id = id;
    shard.generation = record.generation;
    shard.owner = SessionId{record.session};
    shard.info = TensorInfo{record.name, record.dtype, record.ndim, {}};
    std::copy(std::begin(record.shape), std::end(record.shape), std::begin(shard.info.shape));
    shard.bytes = bytes_of(record);
    shard.fixed = record.fixed != 0;
    shard.retired = lease->state == LeaseState::kQuarantined;
    shard.abandoned = shard.retired && home->sessions.count(shard.owner) == 0;
    shard.recovered = true;
    shard.settled = false;
    shard.current = static_cast<int>(record.current);
    for (int place = 0; place < 2; ++place) {
        FABRIC_TRY(shard.copies[place], restore_copy(shard, record.copies[place]));
    }
    const auto& [first, second] = shard.copies;
    const bool are_one =
        first && second && first->arena == second->arena && first->region == second->region;
    if (are_one) return kShardContradicts;
    // Only one whose end was begun can lack its elements.
    if (!shard.copies[shard.current] && !shard.retired) return {};
    FABRIC_TRY_VOID(restore_readers(image, *home, shard));
    if (!shard.retired && !home->shards.emplace(shard.info.name, id.header).second) {
        return kShardContradicts;
    }
    if (shard.retired || (first && second)) books_.loose_shards.insert(id);
    books_.shards[id] = std::move(shard);
    return {};
}

// Nothing when the copy is there no more; else it counts against the device that the record says.
Result<std::optional<ShardCopy>> Shards::restore_copy(const Shard& shard,
                                                      const ShardRecord::Copy& copy) {
    Arena* arena = books_.find_arena(ArenaId{copy.arena});
    const RegionId id{copy.region};
    Region* const region = still_there(arena, id, copy.generation);
    if (region == nullptr) return std::optional<ShardCopy>{};
    const Lease* lease = arena->leases.find(id);
    const bool is_its_own = region->shard == std::pair{shard.id.arena, shard.id.header} &&
                            (arena->id != shard.id.arena || id != shard.id.header) &&
                            region->bytes >= shard.bytes && lease->session == shard.owner;
    const bool is_held = lease->state == LeaseState::kHeld;
    // The header is the first to be retired.
    if (!is_its_own || (!is_held && !shard.retired)) return kShardContradicts;
    const ShardCopy found{arena->id, id, copy.generation};
    if (!is_held) {
        region->device = copy.device;
    } else if (shard.retired) {
        // One retired half-way is retired, and its owner may have heard of it: the rest is done
        // now.
        regions_.count(books_.session(shard.owner), *region, -1);
        regions_.quarantine(*arena, id);
        region->device = copy.device;
    } else {
        books_.devices.release(region->device, region->bytes);
        region->device = copy.device;
        books_.devices.charge(region->device, region->bytes);
    }
    return std::optional<ShardCopy>{found};
}

void Shards::format_again(const Shard& shard) {
    if (!shard.copies[0] || !format(shard).ok()) return;
    const auto span = header_of(shard);
    for (const auto& [session, book] : shard.readers) {
        if (span.ok()) fabricshm::assign_reader(header_in(*span), book.slot, raw(session));
    }
}

// The arena's memory is here again. Where a move was cut off, the word says whether the new copy
// had become the valid one; the other one goes. Any client could have written that word: it can
// choose between the two copies that the registry knows, both of them its own job's.
void Shards::settle(const Arena& arena, Effects& out) {
    for (auto& [id, shard] : books_.shards) {
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
        // Lines of those that died or left while nothing could write here.
        for (int slot = 0; slot < fabricshm::kShardReadersMax; ++slot) {
            if (taken.count(slot) == 0) fabricshm::assign_reader(header, slot, 0);
        }
        if (shard.retired) fabricshm::retire_shard(header);
        FAULT_POINT("move.settled");
        if (!shard.retired) journal_.note(record_of(books_, shard));
    }
    sweep_all(out);
}

}  // namespace fabricd
