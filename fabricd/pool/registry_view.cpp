// Registry: what it shows to people, and what it says about itself to tests.

#include <algorithm>
#include <string>

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
    view.bytes_quarantined = arena.bytes_quarantined();
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
    Snapshot all;
    all.daemon_epoch = daemon_epoch_;
    all.draining = draining_;
    for (const auto& [id, session] : sessions_) {
        if (session.ending) continue;  // gone for all but its books
        all.sessions.push_back({raw(id), session.peer.pid, session.peer.uid, session.label,
                                milliseconds(now - session.since), session.bytes_owned,
                                session.connected, session.device});
    }
    all.devices = devices_.view(now);
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
    for (const auto& [id, arena] : arenas_) {
        all.arenas.push_back(view_of(arena));
        for (const auto& [region_id, region] : arena.regions) {
            all.regions.push_back(view_of(arena, region_id, region));
        }
        for (const auto& [offset, bytes] : ownerless(arena, pieces_of(arena))) {
            // Region and owner 0: nobody's.
            all.regions.push_back({raw(id), 0, 0, offset, bytes, 0, "", "bad"});
        }
        for (const auto& [group_id, group] : arena.groups) all.groups.push_back(view_of(group));
    }
    for (const auto& [id, shard] : shards_) all.shards.push_back(view_shard(shard));
    for (auto& [key, view] : forming) all.groups.push_back(std::move(view));
    return all;
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
