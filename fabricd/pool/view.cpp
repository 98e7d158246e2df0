#include "fabricd/pool/view.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace fabricd {

namespace {

std::int64_t milliseconds(Duration length) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(length).count();
}

ArenaView view_of(const Arena& arena) {
    ArenaView view;
    view.id = raw(arena.id);
    view.name = arena.name;
    view.uid = arena.uid;
    view.bytes = arena.bytes;
    view.bytes_used = arena.space.bytes_used();
    view.bytes_committed = arena.committed;
    view.bytes_quarantined = arena.bytes_quarantined;
    view.sessions = static_cast<std::uint32_t>(arena.sessions.size());
    for (const SessionId session : arena.sessions) view.session_ids.push_back(raw(session));
    return view;
}

RegionView view_of(const Arena& arena, RegionId id, const Region& region) {
    const Lease& lease = *arena.leases.find(id);
    RegionView view;
    view.arena_id = raw(arena.id);
    view.id = raw(id);
    view.generation = lease.epoch;
    view.offset = region.offset;
    view.bytes = region.bytes;
    view.owner_session = raw(lease.session);
    view.tensor_name = region.tensor ? region.tensor->name : "";
    const bool quarantined = lease.state == LeaseState::kQuarantined;
    view.state = quarantined ? RegionState::kQuarantined : RegionState::kLive;
    // Above the state of the lease: this is what people have to act upon.
    if (arena.lost.touches(region.offset, region.bytes)) view.state = RegionState::kBad;
    return view;
}

GroupView view_of(const Group& group) {
    GroupView view;
    view.arena_id = raw(group.arena);
    view.id = raw(group.id);
    view.name = group.name;
    view.epoch = raw(group.id);
    view.world = group.world();
    view.joined = group.count(MemberState::kLive);
    for (int rank = 0; rank < group.world(); ++rank) {
        const MemberState state = group.members[static_cast<std::size_t>(rank)].state;
        if (state == MemberState::kDead) view.dead_ranks.push_back(rank);
    }
    // A shrunk group has had its day, too.
    const bool over = group.broken() || group.shrunk;
    view.state = over ? GroupState::kBroken : GroupState::kComplete;
    return view;
}

// What comes after `last` in the order of ids, while there is some of `left`, from which each takes
// what it costs. True at the end of them.
template <typename Map, typename Id, typename Look>
bool visit_some(const Map& map, Id& last, int& left, Look look) {
    for (auto at = map.upper_bound(last); at != map.end(); ++at) {
        if (left <= 0) return false;
        left -= look(at->first, at->second);
        last = at->first;
    }
    return true;
}

// Sessions at their end are gone for all but the accounts; all others are connected or lost.
SnapshotTotals totals_of(const Books& books) {
    SnapshotTotals totals;
    totals.sessions = books.sessions.size() - books.ending.size();
    totals.sessions_connected = totals.sessions - books.lost.size();
    totals.arenas = books.arenas.size();
    for (const auto& [id, arena] : books.arenas) {
        totals.regions += arena.regions.size();
        totals.groups += arena.groups.size();
    }
    totals.groups += books.waits.count_keys(WaitKind::kJoin);
    return totals;
}

bool walk_sessions(const Books& books, SnapshotWalk& walk, int& left, TimePoint now) {
    return visit_some(
        books.sessions, walk.session, left, [&](SessionId id, const Session& session) {
            if (session.ending) return 1;
            walk.all.sessions.push_back({raw(id), session.peer.pid, session.peer.uid, session.label,
                                         milliseconds(now - session.since), session.bytes_owned,
                                         session.connected, session.device, session.peer.host,
                                         session.given_up});
            return 1;
        });
}

bool walk_arenas(const Books& books, SnapshotWalk& walk, int& left) {
    const bool is_over =
        visit_some(books.arenas, walk.arena, left, [&](ArenaId, const Arena& arena) {
            walk.all.arenas.push_back(view_of(arena));
            return 1 + static_cast<int>(arena.sessions.size() / 8);
        });
    if (is_over) walk.arena = ArenaId::kNone;
    return is_over;
}

bool walk_regions(const Books& books, SnapshotWalk& walk, int& left) {
    for (auto at = books.arenas.lower_bound(walk.arena); at != books.arenas.end(); ++at) {
        const Arena& arena = at->second;
        if (walk.parts.arena_id != 0 && raw(at->first) != walk.parts.arena_id) continue;
        if (at->first != std::exchange(walk.arena, at->first)) {
            walk.region = RegionId::kNone;
            walk.bad.clear();
        }
        const auto look = [&](RegionId id, const Region& region) {
            walk.all.regions.push_back(view_of(arena, id, region));
            const bool bad = arena.lost.touches(region.offset, region.bytes);
            if (bad) walk.bad.emplace_back(region.offset, region.bytes);
            return 1;
        };
        if (!visit_some(arena.regions, walk.region, left, look)) return false;
        if (!arena.lost.all().empty()) {
            for (const auto& [id, group] : arena.groups) {
                walk.bad.emplace_back(group.block_offset, group.block_bytes);
            }
        }
        for (const auto& [offset, bytes] : arena.lost.outside(walk.bad)) {
            // Region and owner 0: bytes that belong to no region.
            walk.all.regions.push_back(
                {raw(at->first), 0, 0, offset, bytes, 0, "", RegionState::kBad});
        }
    }
    walk.arena = ArenaId::kNone;
    return true;
}

bool walk_groups(const Books& books, SnapshotWalk& walk, int& left) {
    for (auto at = books.arenas.lower_bound(walk.arena); at != books.arenas.end(); ++at) {
        if (at->first != std::exchange(walk.arena, at->first)) walk.group = GroupId::kNone;
        const auto look = [&](GroupId, const Group& group) {
            walk.all.groups.push_back(view_of(group));
            return 1 + group.world() / 8;
        };
        if (!visit_some(at->second.groups, walk.group, left, look)) return false;
    }
    // Groups that are forming are waits and nothing else; those for the same group make one line.
    std::map<WaitKey, GroupView> forming;
    books.waits.for_each([&](const Wait& wait) {
        if (wait.key.kind != WaitKind::kJoin) return;
        GroupView& view = forming[wait.key];
        view.arena_id = raw(wait.key.arena);
        view.name = wait.key.name;
        view.world = wait.world;
        ++view.joined;
        view.state = GroupState::kForming;
    });
    for (auto& [key, view] : forming) walk.all.groups.push_back(std::move(view));
    return true;
}

bool walk_shards(const Books& books, SnapshotWalk& walk, int& left) {
    return visit_some(books.shards, walk.shard, left, [&](ShardId, const Shard& shard) {
        walk.all.shards.push_back(view_of(books, shard));
        return 1;
    });
}

Bytes room_of(const Books& books, const std::string& device) {
    std::set<ArenaId> arenas;
    for (const auto& [id, session] : books.sessions) {
        if (session.device == device) arenas.insert(session.arenas.begin(), session.arenas.end());
    }
    Bytes room = 0;
    for (const ArenaId id : arenas) room += books.arena(id).room();
    return room;
}

ShardState state_of(const Shard& shard) {
    if (shard.retired) return ShardState::kRetired;
    if (shard.move) return ShardState::kMoving;
    if (shard.copies[0] && shard.copies[1]) return ShardState::kDraining;
    return shard.fixed ? ShardState::kFixed : ShardState::kHere;
}

}  // namespace

SessionNames names_of(const Books& books, SessionId id) {
    const Session* found = books.find_session(id);
    if (found == nullptr) return {};
    return {found->label, found->device};
}

SessionAccount account_of(const Books& books, SessionId id, ArenaId arena, GroupId group,
                          int rank) {
    SessionAccount account;
    const Session* session = books.find_session(id);
    if (session == nullptr) return account;
    account.owned = session->bytes_owned;
    account.denied = session->bytes_denied;
    const Arena* job = books.find_arena(arena);
    if (job == nullptr) return account;
    const auto found = job->groups.find(group);
    if (found == job->groups.end() || rank < 0 || rank >= found->second.world()) return account;
    const Member& member = found->second.members[static_cast<std::size_t>(rank)];
    account.member = member.session == id && member.state == MemberState::kLive;
    return account;
}

std::optional<ShardId> shard_named(const Books& books, const std::string& name) {
    // Both names may hold a slash: the one that makes the two known is meant.
    const std::size_t slash = name.find('/');
    if (slash == std::string::npos) return std::nullopt;
    const auto arena = books.arena_names.find(name.substr(0, slash));
    if (arena == books.arena_names.end()) return std::nullopt;
    const Arena& home = books.arena(arena->second);
    const auto named = home.shards.find(name.substr(slash + 1));
    if (named == home.shards.end()) return std::nullopt;
    return ShardId{home.id, named->second};
}

ShardView view_of(const Books& books, const Shard& shard) {
    const Arena& arena = books.arena(shard.id.arena);
    ShardView view;
    view.arena_id = raw(arena.id);
    view.id = raw(shard.id.header);
    view.name = arena.name + "/" + shard.info.name;
    view.owner_session = raw(shard.owner);
    view.bytes = shard.bytes;
    view.readers = static_cast<std::uint32_t>(shard.readers.size());
    view.moves = shard.moves;
    view.state = state_of(shard);
    // Relaxed: a picture may be a little old.
    if (shard.move) view.moved_bytes = shard.move->progress->done.load(std::memory_order_relaxed);
    const auto& copy = shard.copies[shard.current];
    if (!copy) return view;
    const Arena& home = books.arena(copy->arena);
    const Region& region = home.regions.at(copy->region);
    view.home_arena = home.name;
    view.offset = region.offset;
    view.home_device = region.device;
    return view;
}

Places places(const Books& books, const std::vector<ShardId>& wanted, TimePoint now) {
    Places all;
    all.devices = books.devices.view(now);
    for (DeviceView& device : all.devices) {
        if (device.bytes_denied != 0) device.arena_room_bytes = room_of(books, device.spec.name);
    }
    for (const ShardId& id : wanted) {
        if (const Shard* found = books.find_shard(id)) all.shards.push_back(view_of(books, *found));
    }
    return all;
}

Snapshot snapshot(const Books& books, TimePoint now) {
    SnapshotWalk walk{SnapshotParts::all()};
    look_on(books, walk, std::numeric_limits<int>::max(), now);
    return std::move(walk.all);
}

bool look_on(const Books& books, SnapshotWalk& walk, int most, TimePoint now) {
    using Stage = SnapshotWalk::Stage;
    int left = most;
    for (;; walk.stage = static_cast<Stage>(static_cast<int>(walk.stage) + 1)) {
        bool is_over = true;
        switch (walk.stage) {
            case Stage::kBegin:
                walk.all.daemon_epoch = books.daemon_epoch;
                walk.all.draining = books.draining;
                walk.all.devices = books.devices.view(now);
                walk.all.totals = totals_of(books);
                break;
            case Stage::kSessions:
                is_over = !walk.parts.sessions || walk_sessions(books, walk, left, now);
                break;
            case Stage::kArenas:
                is_over = !walk.parts.arenas || walk_arenas(books, walk, left);
                break;
            case Stage::kRegions:
                is_over = !walk.parts.regions || walk_regions(books, walk, left);
                break;
            case Stage::kGroups:
                is_over = !walk.parts.groups || walk_groups(books, walk, left);
                break;
            case Stage::kShards:
                is_over = !walk.parts.shards || walk_shards(books, walk, left);
                break;
            case Stage::kDone:
                return true;
        }
        if (!is_over) return false;
    }
}

}  // namespace fabricd
