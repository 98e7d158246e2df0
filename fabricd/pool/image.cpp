#include "fabricd/pool/image.hpp"

#include <algorithm>
#include <cstring>

#include "fabricd/pool/region_allocator.hpp"

namespace fabricd {

namespace {

constexpr Error kNonsense{Errc::kCorrupt, 0, "replay journal"};

// Above any that a daemon comes to; one more than the highest is still a number.
constexpr std::uint64_t kMaxNumber = std::uint64_t{1} << 62;

bool is_id(std::uint64_t id) {
    return id != 0 && id < kMaxNumber;
}

bool is_whole(std::uint64_t bytes) {
    return bytes <= kMaxNumber && bytes % RegionAllocator::kUnit == 0;
}

/// Copies the payload into a record; false when it has another size.
/// Sizes are compared exactly: a record of another layout is of another version, or none.
template <typename Record>
bool read(const JournalContents::Entry& entry, Record* record) {
    if (entry.payload.size() != sizeof(Record)) return false;
    std::memcpy(record, entry.payload.data(), sizeof(Record));
    return true;
}

}  // namespace

// Records are trusted to be what some daemon wrote (their checksum is right), but not to fit each
// other: each one that does not is a bug, and is said instead of repaired. A guess here could give
// one region to two owners.
struct Replay::Player {
    Result<void> play(const JournalContents::Entry& entry);

    PoolImage image;
    bool has_begun = false;

  private:
    bool start(const JournalContents::Entry& entry);
    bool session_opened(const JournalContents::Entry& entry);
    bool session_host(const JournalContents::Entry& entry);
    bool session_ending(const JournalContents::Entry& entry);
    bool session_ended(const JournalContents::Entry& entry);
    bool arena_made(const JournalContents::Entry& entry);
    bool arena_grown(const JournalContents::Entry& entry);
    bool arena_shrunk(const JournalContents::Entry& entry);
    bool arena_gone(const JournalContents::Entry& entry);
    bool arena_joined(const JournalContents::Entry& entry);
    bool arena_left(const JournalContents::Entry& entry);
    bool region(const JournalContents::Entry& entry);
    bool tensor(const JournalContents::Entry& entry);
    bool group_made(const JournalContents::Entry& entry);
    bool group_member(const JournalContents::Entry& entry);
    bool group_shrunk(const JournalContents::Entry& entry);
    bool group_gone(const JournalContents::Entry& entry);
    bool lost(const JournalContents::Entry& entry);
    bool published(const JournalContents::Entry& entry);
    bool pin_page(const JournalContents::Entry& entry);
    bool pin_page_gone(const JournalContents::Entry& entry);
    bool shard(const JournalContents::Entry& entry);
    bool shard_reader(const JournalContents::Entry& entry);
    bool shard_gone(const JournalContents::Entry& entry);
    bool quota(const JournalContents::Entry& entry);

    bool dispatch(const JournalContents::Entry& entry);
    // Ids are never given twice, also not those whose objects are gone.
    void saw_id(std::uint64_t id) { image.last_id = std::max(image.last_id, id); }
    ArenaImage* arena(std::uint64_t id);
    GroupImage* group(std::uint64_t arena_id, std::uint64_t id);
};

ArenaImage* Replay::Player::arena(std::uint64_t id) {
    const auto found = image.arenas.find(ArenaId{id});
    return found == image.arenas.end() ? nullptr : &found->second;
}

GroupImage* Replay::Player::group(std::uint64_t arena_id, std::uint64_t id) {
    ArenaImage* owner = arena(arena_id);
    if (owner == nullptr) return nullptr;
    const auto found = owner->groups.find(GroupId{id});
    return found == owner->groups.end() ? nullptr : &found->second;
}

bool Replay::Player::start(const JournalContents::Entry& entry) {
    StartRecord record;
    if (!read(entry, &record) || has_begun) return false;
    // Each start of a daemon writes one, in a fresh file.
    has_begun = true;
    image.daemon_epoch = record.daemon_epoch;
    saw_id(record.last_id);
    return record.last_id < kMaxNumber;
}

bool Replay::Player::session_opened(const JournalContents::Entry& entry) {
    SessionRecord record;
    if (!read(entry, &record) || !is_id(record.session)) return false;
    saw_id(record.session);
    // An id that opens twice is a contradiction.
    return image.sessions.emplace(SessionId{record.session}, record).second;
}

bool Replay::Player::session_host(const JournalContents::Entry& entry) {
    SessionHostRecord record;
    if (!read(entry, &record) || image.sessions.count(SessionId{record.session}) == 0) return false;
    // One is given up once, and for good.
    const auto before = image.hosts.find(SessionId{record.session});
    if (before != image.hosts.end() && before->second.given_up != 0) return false;
    image.hosts[SessionId{record.session}] = record;
    return record.given_up <= 1;
}

bool Replay::Player::session_ending(const JournalContents::Entry& entry) {
    SessionEndingRecord record;
    if (!read(entry, &record) || image.sessions.count(SessionId{record.session}) == 0) return false;
    // Again, when a daemon that finished the ends of another was killed, too.
    image.ending.insert(SessionId{record.session});
    return true;
}

bool Replay::Player::session_ended(const JournalContents::Entry& entry) {
    SessionEndRecord record;
    if (!read(entry, &record)) return false;
    image.ending.erase(SessionId{record.session});
    image.hosts.erase(SessionId{record.session});
    return image.sessions.erase(SessionId{record.session}) == 1;
}

bool Replay::Player::arena_made(const JournalContents::Entry& entry) {
    ArenaImage made;
    if (!read(entry, &made.record) || !is_id(made.record.arena)) return false;
    if (!is_whole(made.record.bytes) || !is_whole(made.record.link_bytes)) return false;
    saw_id(made.record.arena);
    return image.arenas.emplace(ArenaId{made.record.arena}, std::move(made)).second;
}

bool Replay::Player::arena_grown(const JournalContents::Entry& entry) {
    ArenaGrownRecord record;
    if (!read(entry, &record) || arena(record.arena) == nullptr) return false;
    ArenaImage& grown = *arena(record.arena);
    if (record.committed > grown.record.bytes || !is_whole(record.committed)) return false;
    // Committed bytes stay so.
    if (grown.committed && record.committed < *grown.committed) return false;
    grown.committed = record.committed;
    return true;
}

bool Replay::Player::arena_shrunk(const JournalContents::Entry& entry) {
    ArenaShrunkRecord record;
    if (!read(entry, &record) || arena(record.arena) == nullptr) return false;
    ArenaImage& shrunk = *arena(record.arena);
    if (!shrunk.published) return false;
    const Bytes before = shrunk.committed.value_or(shrunk.record.bytes);
    if (record.committed >= before || !is_whole(record.committed)) return false;
    shrunk.committed = record.committed;
    return true;
}

bool Replay::Player::arena_gone(const JournalContents::Entry& entry) {
    ArenaEndRecord record;
    if (!read(entry, &record)) return false;
    // What was left of its shards went with it.
    std::erase_if(image.shards,
                  [&](const auto& shard) { return raw(shard.first.first) == record.arena; });
    return image.arenas.erase(ArenaId{record.arena}) == 1;
}

// Only sessions that are open can join. The other order cannot come about: a session leaves its
// arenas before its end is written.
bool Replay::Player::arena_joined(const JournalContents::Entry& entry) {
    ArenaJoinRecord record;
    if (!read(entry, &record) || arena(record.arena) == nullptr) return false;
    if (image.sessions.count(SessionId{record.session}) == 0) return false;
    arena(record.arena)->sessions.insert(SessionId{record.session});
    return true;
}

bool Replay::Player::arena_left(const JournalContents::Entry& entry) {
    ArenaLeaveRecord record;
    if (!read(entry, &record) || arena(record.arena) == nullptr) return false;
    // A session that was not in it cannot leave.
    return arena(record.arena)->sessions.erase(SessionId{record.session}) == 1;
}

// The newest record of an id counts, so a region's life is three records or two: granted, perhaps
// quarantined, freed.
bool Replay::Player::region(const JournalContents::Entry& entry) {
    RegionRecord record;
    if (!read(entry, &record) || arena(record.arena) == nullptr) return false;
    if (!is_id(record.region) || record.generation >= kMaxNumber) return false;
    ArenaImage& owner = *arena(record.arena);
    const auto [known, is_new] = owner.regions.try_emplace(RegionId{record.region}, record);
    // A generation that comes back would be two owners' in turn.
    if (record.generation < known->second.generation) return false;
    known->second = record;
    // A quarantined or freed tensor has lost its name; the record of its next life brings a new
    // one.
    if (record.is_tensor == 0) owner.tensors.erase(RegionId{record.region});
    return record.is_tensor == 0 || owner.tensors.count(RegionId{record.region}) == 1;
}

bool Replay::Player::tensor(const JournalContents::Entry& entry) {
    TensorRecord record;
    // Comes before its region's record; a crash in between leaves a tensor that no region names.
    if (!read(entry, &record) || arena(record.arena) == nullptr) return false;
    arena(record.arena)->tensors[RegionId{record.region}] = record;
    return true;
}

bool Replay::Player::group_made(const JournalContents::Entry& entry) {
    constexpr std::size_t kFixed = offsetof(GroupRecord, sessions);
    const std::size_t size = entry.payload.size();
    GroupImage made{};
    if (size < kFixed || size > sizeof made.record) return false;
    std::memcpy(&made.record, entry.payload.data(), size);
    // Exactly the members that it speaks of: a record that was cut short by a wrong length must not
    // leave ranks to session 0.
    const std::uint32_t world = made.record.world;
    if (world == 0 || size != kFixed + world * sizeof(std::uint64_t)) return false;
    if (arena(made.record.arena) == nullptr || !is_id(made.record.group)) return false;
    if (made.record.shrunk_from >= made.record.group) return false;  // ids rise
    saw_id(made.record.group);
    made.states.assign(world, 0);
    auto& groups = arena(made.record.arena)->groups;
    return groups.emplace(GroupId{made.record.group}, std::move(made)).second;
}

// States only go from live to left or dead. That is not checked: written twice after a crash, they
// say the same.
bool Replay::Player::group_member(const JournalContents::Entry& entry) {
    GroupMemberRecord record;
    if (!read(entry, &record)) return false;
    GroupImage* owner = group(record.arena, record.group);
    if (owner == nullptr || record.rank >= owner->states.size() || record.state > 2) return false;
    owner->states[record.rank] = record.state;
    return true;
}

bool Replay::Player::group_shrunk(const JournalContents::Entry& entry) {
    GroupShrunkRecord record;
    if (!read(entry, &record) || group(record.arena, record.group) == nullptr) return false;
    // Its successor is a record of its own, which names it.
    group(record.arena, record.group)->shrunk = true;
    return true;
}

bool Replay::Player::group_gone(const JournalContents::Entry& entry) {
    GroupEndRecord record;
    if (!read(entry, &record) || arena(record.arena) == nullptr) return false;
    auto& groups = arena(record.arena)->groups;
    const auto gone = groups.find(GroupId{record.group});
    if (gone == groups.end()) return false;
    // As Registry::reopen_shrink(): no rank went on from it.
    const auto before = groups.find(GroupId{gone->second.record.shrunk_from});
    if (before != groups.end() && !gone->second.shrunk) before->second.shrunk = false;
    groups.erase(gone);
    return true;
}

bool Replay::Player::lost(const JournalContents::Entry& entry) {
    LostRecord record;
    if (!read(entry, &record) || arena(record.arena) == nullptr) return false;
    arena(record.arena)->lost.push_back(record);
    return true;
}

bool Replay::Player::published(const JournalContents::Entry& entry) {
    ArenaPublishedRecord record;
    if (!read(entry, &record) || arena(record.arena) == nullptr) return false;
    if (record.readers[sizeof record.readers - 1] != '\0' || record.withdrawn > 1) return false;
    // Its maker may be gone by now: it is one only while it is in the arena.
    arena(record.arena)->published = record;
    return true;
}

bool Replay::Player::pin_page(const JournalContents::Entry& entry) {
    PinPageRecord record;
    if (!read(entry, &record) || arena(record.arena) == nullptr || !is_id(record.number))
        return false;
    if (!arena(record.arena)->published) return false;
    saw_id(record.number);
    // Numbers are never given twice.
    return arena(record.arena)->pin_pages.emplace(record.number, record).second;
}

bool Replay::Player::pin_page_gone(const JournalContents::Entry& entry) {
    PinPageEndRecord record;
    if (!read(entry, &record) || arena(record.arena) == nullptr) return false;
    return arena(record.arena)->pin_pages.erase(record.number) == 1;
}

bool Replay::Player::shard(const JournalContents::Entry& entry) {
    ShardRecord record;
    if (!read(entry, &record) || arena(record.arena) == nullptr || record.current > 1) return false;
    ShardImage& known = image.shards[{ArenaId{record.arena}, RegionId{record.region}}];
    // The region's id was used again, and the end of the earlier shard was not written any more.
    if (known.record.generation != record.generation) known.readers.clear();
    known.record = record;
    return true;
}

// Its session may be gone already: lines are given back after that.
bool Replay::Player::shard_reader(const JournalContents::Entry& entry) {
    ShardReaderRecord record;
    if (!read(entry, &record)) return false;
    const auto found = image.shards.find({ArenaId{record.arena}, RegionId{record.region}});
    if (found == image.shards.end()) return false;
    auto& readers = found->second.readers;
    if (record.open != 0) readers[SessionId{record.session}] = record.slot;
    if (record.open == 0) readers.erase(SessionId{record.session});
    return true;
}

bool Replay::Player::shard_gone(const JournalContents::Entry& entry) {
    ShardEndRecord record;
    if (!read(entry, &record)) return false;
    // One whose making failed half-way has no other record than this.
    image.shards.erase({ArenaId{record.arena}, RegionId{record.region}});
    return true;
}

// A subject fills its field at most up to the last byte.
bool Replay::Player::quota(const JournalContents::Entry& entry) {
    QuotaRecord record;
    if (!read(entry, &record) || record.subject[sizeof record.subject - 1] != '\0') return false;
    image.quotas[record.subject] = record;
    return true;
}

bool Replay::Player::dispatch(const JournalContents::Entry& entry) {
    switch (entry.type) {
        case RecordType::kStart:
            return start(entry);
        case RecordType::kSessionOpened:
            return session_opened(entry);
        case RecordType::kSessionHost:
            return session_host(entry);
        case RecordType::kSessionEnding:
            return session_ending(entry);
        case RecordType::kSessionEnded:
            return session_ended(entry);
        case RecordType::kArenaMade:
            return arena_made(entry);
        case RecordType::kArenaGrown:
            return arena_grown(entry);
        case RecordType::kArenaShrunk:
            return arena_shrunk(entry);
        case RecordType::kArenaGone:
            return arena_gone(entry);
        case RecordType::kArenaJoined:
            return arena_joined(entry);
        case RecordType::kArenaLeft:
            return arena_left(entry);
        case RecordType::kRegion:
            return region(entry);
        case RecordType::kTensor:
            return tensor(entry);
        case RecordType::kGroupMade:
            return group_made(entry);
        case RecordType::kGroupMember:
            return group_member(entry);
        case RecordType::kGroupShrunk:
            return group_shrunk(entry);
        case RecordType::kGroupGone:
            return group_gone(entry);
        case RecordType::kLost:
            return lost(entry);
        case RecordType::kShard:
            return shard(entry);
        case RecordType::kShardReader:
            return shard_reader(entry);
        case RecordType::kShardGone:
            return shard_gone(entry);
        case RecordType::kQuota:
            return quota(entry);
        case RecordType::kArenaPublished:
            return published(entry);
        case RecordType::kPinPage:
            return pin_page(entry);
        case RecordType::kPinPageGone:
            return pin_page_gone(entry);
    }
    return false;
}

// The first one says what the others are.
Result<void> check_start(const JournalContents::Entry& entry) {
    StartRecord record;
    if (entry.type != RecordType::kStart || !read(entry, &record)) return kNonsense;
    if (record.magic != kJournalMagic) return kNonsense;
    if (record.version != kJournalVersion) return Error{Errc::kVersion, 0, "read journal"};
    return {};
}

Result<void> Replay::Player::play(const JournalContents::Entry& entry) {
    if (!has_begun) FABRIC_TRY_VOID(check_start(entry));
    if (!dispatch(entry)) return kNonsense;
    return {};
}

Replay::Replay() : player_(std::make_unique<Player>()) {}
Replay::~Replay() = default;

Result<void> Replay::play(const JournalEntry& record) {
    return player_->play(record);
}

PoolImage Replay::take() noexcept {
    return std::move(player_->image);
}

Result<PoolImage> replay(const JournalContents& contents) {
    Replay player;
    if (contents.damage) return Error{Errc::kCorrupt, 0, "read journal"};
    if (contents.old_layout) return Error{Errc::kVersion, 0, "read journal"};
    // Without any there is no file.
    for (const auto& entry : contents.entries) FABRIC_TRY_VOID(player.play(entry));
    return player.take();
}

namespace {

Result<void> write_regions(const ArenaImage& arena, JournalSink& sink) {
    const auto is_tensor = [&](RegionId id) {
        const auto region = arena.regions.find(id);
        return region != arena.regions.end() && region->second.is_tensor != 0;
    };
    for (const auto& [id, region] : arena.regions) {
        // Its region's record looks for it.
        if (region.is_tensor != 0) FABRIC_TRY_VOID(sink.add(arena.tensors.at(id)));
        FABRIC_TRY_VOID(sink.add(region));
    }
    // Whose region's record is still to come: another record of before would take it away.
    for (const auto& [id, tensor] : arena.tensors) {
        if (!is_tensor(id)) FABRIC_TRY_VOID(sink.add(tensor));
    }
    return {};
}

Result<void> write_group(const GroupImage& group, JournalSink& sink) {
    const std::size_t bytes =
        offsetof(GroupRecord, sessions) + group.states.size() * sizeof(std::uint64_t);
    const auto whole = std::as_bytes(std::span(&group.record, 1));
    FABRIC_TRY_VOID(sink.append(GroupRecord::kType, whole.first(bytes)));
    const std::uint64_t arena = group.record.arena;
    for (std::uint32_t rank = 0; rank < group.states.size(); ++rank) {
        const std::uint32_t state = group.states[rank];
        if (state == 0) continue;  // as the group's own record says
        FABRIC_TRY_VOID(sink.add(GroupMemberRecord{arena, group.record.group, rank, state}));
    }
    if (!group.shrunk) return {};
    return sink.add(GroupShrunkRecord{arena, group.record.group});
}

Result<void> write_arena(const ArenaImage& arena, JournalSink& sink) {
    const std::uint64_t id = arena.record.arena;
    FABRIC_TRY_VOID(sink.add(arena.record));
    if (arena.committed) FABRIC_TRY_VOID(sink.add(ArenaGrownRecord{id, *arena.committed}));
    if (arena.published) FABRIC_TRY_VOID(sink.add(*arena.published));
    for (const auto& [number, page] : arena.pin_pages) FABRIC_TRY_VOID(sink.add(page));
    for (const SessionId session : arena.sessions) {
        FABRIC_TRY_VOID(sink.add(ArenaJoinRecord{id, raw(session)}));
    }
    FABRIC_TRY_VOID(write_regions(arena, sink));
    for (const auto& [group_id, group] : arena.groups) FABRIC_TRY_VOID(write_group(group, sink));
    for (const LostRecord& lost : arena.lost) FABRIC_TRY_VOID(sink.add(lost));
    return {};
}

Result<void> write_shard(const ShardImage& shard, JournalSink& sink) {
    FABRIC_TRY_VOID(sink.add(shard.record));
    for (const auto& [session, slot] : shard.readers) {
        FABRIC_TRY_VOID(sink.add(
            ShardReaderRecord{shard.record.arena, shard.record.region, raw(session), slot, 1}));
    }
    return {};
}

}  // namespace

Result<void> write_image(const PoolImage& image, JournalSink& sink) {
    FABRIC_TRY_VOID(sink.add(
        StartRecord{kJournalMagic, image.daemon_epoch, image.last_id, kJournalVersion, 0}));
    for (const auto& [id, session] : image.sessions) {
        FABRIC_TRY_VOID(sink.add(session));
        const auto host = image.hosts.find(id);
        if (host != image.hosts.end()) FABRIC_TRY_VOID(sink.add(host->second));
        if (image.ending.count(id) != 0) FABRIC_TRY_VOID(sink.add(SessionEndingRecord{raw(id)}));
    }
    for (const auto& [id, arena] : image.arenas) FABRIC_TRY_VOID(write_arena(arena, sink));
    for (const auto& [id, shard] : image.shards) FABRIC_TRY_VOID(write_shard(shard, sink));
    for (const auto& [subject, quota] : image.quotas) FABRIC_TRY_VOID(sink.add(quota));
    return {};
}

int come_home(PoolImage& image, const Peer& own) {
    return static_cast<int>(std::erase_if(image.hosts, [&](const auto& entry) {
        const SessionHostRecord& record = entry.second;
        Peer peer;
        // Not more than the field has, though a journal that was copied may be damaged.
        peer.host.assign(record.host, ::strnlen(record.host, sizeof record.host));
        peer.boot = record.boot;
        peer.machine = record.machine;
        peer.pid_namespace = record.pid_namespace;
        return record.given_up == 0 && peer.is_seen_with(own);
    }));
}

}  // namespace fabricd
