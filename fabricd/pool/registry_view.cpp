// Registry: what it shows to people, and what it says about itself to tests.

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "fabricd/pool/registry.hpp"

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
    view.state = lease.state == LeaseState::kQuarantined ? "quarantined" : "live";
    // Above the state of the lease: this is what people have to act upon.
    if (arena.lost.touches(region.offset, region.bytes)) view.state = "bad";
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
    view.state = group.broken() || group.shrunk ? "broken" : "complete";
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

// Every piece that is given out, in the order of its bytes: none may touch the next.
std::vector<std::pair<std::uint64_t, Bytes>> pieces_of(const Arena& arena) {
    std::vector<std::pair<std::uint64_t, Bytes>> pieces;
    for (const auto& [id, region] : arena.regions) pieces.emplace_back(region.offset, region.bytes);
    for (const auto& [id, group] : arena.groups) {
        pieces.emplace_back(group.block_offset, group.block_bytes);
    }
    std::sort(pieces.begin(), pieces.end());
    return pieces;
}

// Lost bytes in none of the pieces: they are taken, and nobody's.
std::vector<std::pair<std::uint64_t, Bytes>> ownerless(
    const Arena& arena, const std::vector<std::pair<std::uint64_t, Bytes>>& pieces) {
    LostRanges owned;
    for (const auto& [offset, bytes] : pieces) owned.add(offset, bytes);
    std::vector<std::pair<std::uint64_t, Bytes>> found;
    for (const auto& [offset, bytes] : arena.lost.all()) {
        for (const auto& part : owned.intact(offset, bytes)) found.push_back(part);
    }
    return found;
}

// Every byte that is taken has one owner, or is lost.
void check_space(const Arena& arena, std::vector<std::string>* found) {
    Bytes sum = arena.link_bytes;  // at the start, and nobody's
    std::uint64_t end = arena.link_bytes;
    const auto pieces = pieces_of(arena);
    for (const auto& [offset, bytes] : ownerless(arena, pieces)) {
        // Beyond what is committed nothing is taken.
        sum += std::min(offset + bytes, std::max(offset, arena.committed)) - offset;
    }
    for (const auto& [offset, bytes] : pieces) {
        if (offset < end) found->push_back("two owners at offset " + std::to_string(offset));
        end = offset + bytes;
        sum += bytes;
    }
    if (sum != arena.space.bytes_used()) found->push_back("leaked bytes in arena " + arena.name);
}

void check_quarantine(const Arena& arena, std::vector<std::string>* found) {
    Bytes sum = 0;
    for (const auto& [session, left] : arena.leases.quarantined()) {
        for (const RegionId region : left) sum += arena.regions.at(region).bytes;
    }
    if (sum != arena.bytes_quarantined) found->push_back("miscounted quarantine in " + arena.name);
}

// The count of dangers is what asking every group anew would say.
void check_dangers(const Arena& arena, std::vector<std::string>* found) {
    std::map<SessionId, int> anew;
    for (const auto& [id, group] : arena.groups) {
        for (const SessionId session : group.sessions()) {
            if (group.endangers(session)) ++anew[session];
        }
    }
    if (anew != arena.dangers) found->push_back("dangers are miscounted in arena " + arena.name);
}

}  // namespace

Bytes Registry::room_of(const std::string& device) const {
    std::set<ArenaId> arenas;
    for (const auto& [id, session] : sessions_) {
        if (session.device == device) arenas.insert(session.arenas.begin(), session.arenas.end());
    }
    Bytes room = 0;
    for (const ArenaId id : arenas) room += arenas_.at(id).room();
    return room;
}

Places Registry::places(const std::vector<ShardId>& wanted, TimePoint now) const {
    Places all;
    all.devices = devices_.view(now);
    for (DeviceView& device : all.devices) {
        if (device.bytes_denied != 0) device.arena_room_bytes = room_of(device.spec.name);
    }
    for (const ShardId& id : wanted) {
        const auto found = shards_.find(id);
        if (found != shards_.end()) all.shards.push_back(view_shard(found->second));
    }
    return all;
}

Snapshot Registry::snapshot(TimePoint now) const {
    SnapshotWalk walk{SnapshotParts::all()};
    look_on(walk, std::numeric_limits<int>::max(), now);
    return std::move(walk.all);
}

bool Registry::look_on(SnapshotWalk& walk, int most, TimePoint now) const {
    using Stage = SnapshotWalk::Stage;
    int left = most;
    for (;; walk.stage = static_cast<Stage>(static_cast<int>(walk.stage) + 1)) {
        bool is_over = true;
        switch (walk.stage) {
            case Stage::kBegin:
                walk.all.daemon_epoch = daemon_epoch_;
                walk.all.draining = draining_;
                walk.all.devices = devices_.view(now);
                walk.all.totals = totals();
                break;
            case Stage::kSessions:
                is_over = !walk.parts.sessions || walk_sessions(walk, left, now);
                break;
            case Stage::kArenas:
                is_over = !walk.parts.arenas || walk_arenas(walk, left);
                break;
            case Stage::kRegions:
                is_over = !walk.parts.regions || walk_regions(walk, left);
                break;
            case Stage::kGroups:
                is_over = !walk.parts.groups || walk_groups(walk, left);
                break;
            case Stage::kShards:
                is_over = !walk.parts.shards || walk_shards(walk, left);
                break;
            case Stage::kDone:
                return true;
        }
        if (!is_over) return false;
    }
}

// Sessions at their end are gone for all but the books; all others are connected or lost.
SnapshotTotals Registry::totals() const {
    SnapshotTotals totals;
    totals.sessions = sessions_.size() - ending_.size();
    totals.sessions_connected = totals.sessions - lost_.size();
    totals.arenas = arenas_.size();
    for (const auto& [id, arena] : arenas_) {
        totals.regions += arena.regions.size();
        totals.groups += arena.groups.size();
    }
    totals.groups += waits_.count_keys(WaitKind::kJoin);
    return totals;
}

bool Registry::walk_sessions(SnapshotWalk& walk, int& left, TimePoint now) const {
    return visit_some(sessions_, walk.session, left, [&](SessionId id, const Session& session) {
        if (session.ending) return 1;
        walk.all.sessions.push_back({raw(id), session.peer.pid, session.peer.uid, session.label,
                                     milliseconds(now - session.since), session.bytes_owned,
                                     session.connected, session.device});
        return 1;
    });
}

bool Registry::walk_arenas(SnapshotWalk& walk, int& left) const {
    const bool is_over = visit_some(arenas_, walk.arena, left, [&](ArenaId, const Arena& arena) {
        walk.all.arenas.push_back(view_of(arena));
        return 1 + static_cast<int>(arena.sessions.size() / 8);
    });
    if (is_over) walk.arena = ArenaId::kNone;
    return is_over;
}

bool Registry::walk_regions(SnapshotWalk& walk, int& left) const {
    for (auto at = arenas_.lower_bound(walk.arena); at != arenas_.end(); ++at) {
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
        for (const auto& [offset, bytes] : ownerless(arena, walk.bad)) {
            // Region and owner 0: nobody's.
            walk.all.regions.push_back({raw(at->first), 0, 0, offset, bytes, 0, "", "bad"});
        }
    }
    walk.arena = ArenaId::kNone;
    return true;
}

bool Registry::walk_groups(SnapshotWalk& walk, int& left) const {
    for (auto at = arenas_.lower_bound(walk.arena); at != arenas_.end(); ++at) {
        if (at->first != std::exchange(walk.arena, at->first)) walk.group = GroupId::kNone;
        const auto look = [&](GroupId, const Group& group) {
            walk.all.groups.push_back(view_of(group));
            return 1 + group.world() / 8;
        };
        if (!visit_some(at->second.groups, walk.group, left, look)) return false;
    }
    // Groups that are forming are waits and nothing else; those for the same group make one line.
    std::map<WaitKey, GroupView> forming;
    waits_.for_each([&](const Wait& wait) {
        if (wait.key.kind != WaitKind::kJoin) return;
        GroupView& view = forming[wait.key];
        view.arena_id = raw(wait.key.arena);
        view.name = wait.key.name;
        view.world = wait.world;
        ++view.joined;
        view.state = "forming";
    });
    for (auto& [key, view] : forming) walk.all.groups.push_back(std::move(view));
    return true;
}

bool Registry::walk_shards(SnapshotWalk& walk, int& left) const {
    return visit_some(shards_, walk.shard, left, [&](ShardId, const Shard& shard) {
        walk.all.shards.push_back(view_shard(shard));
        return 1;
    });
}

std::vector<std::string> Registry::problems() const {
    std::vector<std::string> found = contradictions();
    for (const auto& [id, arena] : arenas_) {
        for (const auto& [session, left] : arena.leases.quarantined()) {
            if (arena.endangered(session) || arena.freeing.count(session) != 0) continue;
            const bool wait_for_readers = std::all_of(
                left.begin(), left.end(),
                [&in = arena](auto region) { return in.regions.at(region).shard.has_value(); });
            if (!wait_for_readers) found.push_back("a quarantine without reason");
        }
    }
    return found;
}

std::vector<std::string> Registry::contradictions() const {
    std::vector<std::string> found;
    // Counted afresh, to compare with the sessions' own books.
    std::map<SessionId, std::pair<int, Bytes>> owned;
    for (const auto& [id, arena] : arenas_) {
        check_space(arena, &found);
        for (const auto& [region_id, region] : arena.regions) {
            const Lease& lease = *arena.leases.find(region_id);
            if (lease.state == LeaseState::kFree) found.push_back("a free region has bytes");
            if (lease.state != LeaseState::kHeld) continue;
            ++owned[lease.session].first;
            owned[lease.session].second += region.bytes;
        }
        check_dangers(arena, &found);
        check_quarantine(arena, &found);
        for (const SessionId member : arena.sessions) {
            const auto session = sessions_.find(member);
            const bool known = session != sessions_.end() && session->second.arenas.count(id) != 0;
            if (!known) found.push_back("an arena has an unknown session");
        }
    }
    for (const auto& [id, session] : sessions_) {
        const auto [count, bytes] = owned[id];
        const bool equal = session.regions == count && session.bytes_owned == bytes;
        if (!equal) found.push_back("session " + std::to_string(raw(id)) + " is miscounted");
        owned.erase(id);
    }
    // What is left over is of sessions that the books do not know.
    if (!owned.empty()) found.push_back("regions of a session that does not exist");
    if (quotas_.sessions() != static_cast<int>(sessions_.size())) {
        found.push_back("sessions are miscounted");
    }
    return found;
}

}  // namespace fabricd
