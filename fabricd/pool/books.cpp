#include "fabricd/pool/books.hpp"

#include <algorithm>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/shm/pin_page.hpp"

namespace fabricd {

namespace {

template <typename Map, typename Id>
auto* find_in(Map& map, const Id& id) {
    const auto found = map.find(id);
    return found == map.end() ? nullptr : &found->second;
}

template <typename Object>
Object& there(Object* found) {
    FABRIC_CHECK(found != nullptr);
    return *found;
}

// Every piece that is given out, in the order of its bytes: none may touch the next.
std::vector<std::pair<std::uint64_t, Bytes>> pieces_of(const Arena& arena) {
    std::vector<std::pair<std::uint64_t, Bytes>> pieces;
    for (const auto& [id, region] : arena.regions) pieces.emplace_back(region.offset, region.bytes);
    for (const auto& [id, group] : arena.groups) {
        pieces.emplace_back(group.block_offset, group.block_bytes);
    }
    if (arena.published) pieces.emplace_back(0, fabricshm::kPublishedHeaderBytes);  // the daemon's
    std::sort(pieces.begin(), pieces.end());
    return pieces;
}

// Every byte that is taken has one owner, or is lost.
void check_space(const Arena& arena, std::vector<std::string>* found) {
    Bytes sum = arena.link_bytes;  // at the start, and of no region
    std::uint64_t end = arena.link_bytes;
    const auto pieces = pieces_of(arena);
    for (const auto& [offset, bytes] : arena.lost.outside(pieces)) {
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

// The count of dangers is what asking every group again would say.
void check_dangers(const Arena& arena, std::vector<std::string>* found) {
    std::map<SessionId, int> expected;
    for (const auto& [id, group] : arena.groups) {
        for (const SessionId session : group.sessions()) {
            if (group.endangers(session)) ++expected[session];
        }
    }
    if (expected != arena.dangers.groups)
        found->push_back("dangers are miscounted in arena " + arena.name);
}

void check_publication(const Arena& arena, std::vector<std::string>* found) {
    if (!arena.published) return;
    const Publication& published = *arena.published;
    const bool maker_left =
        published.maker != SessionId::kNone && arena.sessions.count(published.maker) == 0;
    if (maker_left) found->push_back("a published arena has a maker that is not in it");
    std::set<SessionId> readers;
    for (const auto& [number, page] : published.pages) {
        const bool reads = arena.sessions.count(page.session) != 0;
        if (reads == page.is_orphan) found->push_back("a pin page without its reader");
        if (!readers.insert(page.session).second) found->push_back("a reader with two pin pages");
        if (page.session == published.maker) found->push_back("a maker with a pin page");
    }
}

void count_pages(const Arena& arena, std::map<std::uint32_t, int>* pages) {
    if (!arena.published) return;
    for (const auto& [number, page] : arena.published->pages) ++(*pages)[page.uid];
}

}  // namespace

Session* Books::find_session(SessionId id) {
    return find_in(sessions, id);
}

Arena* Books::find_arena(ArenaId id) {
    return find_in(arenas, id);
}

Shard* Books::find_shard(ShardId id) {
    return find_in(shards, id);
}

const Session* Books::find_session(SessionId id) const {
    return find_in(sessions, id);
}

const Arena* Books::find_arena(ArenaId id) const {
    return find_in(arenas, id);
}

const Shard* Books::find_shard(ShardId id) const {
    return find_in(shards, id);
}

Session& Books::session(SessionId id) {
    return there(find_session(id));
}

Arena& Books::arena(ArenaId id) {
    return there(find_arena(id));
}

Shard& Books::shard(ShardId id) {
    return there(find_shard(id));
}

const Session& Books::session(SessionId id) const {
    return there(find_session(id));
}

const Arena& Books::arena(ArenaId id) const {
    return there(find_arena(id));
}

const Shard& Books::shard(ShardId id) const {
    return there(find_shard(id));
}

Result<Arena*> Books::arena_of(SessionId session, ArenaId id) {
    FABRIC_TRY(Arena* const found, arena_held_by(session, id));
    if (found->dangers.strangers.count(session) == 0) return found;
    return fabricshm::explain({Errc::kCorrupt, 0, "find arena"},
                              "arena '%s': the session has other files mapped than this daemon; "
                              "close it and open it again",
                              found->name.c_str());
}

Result<Arena*> Books::arena_written_by(SessionId session, ArenaId id) {
    FABRIC_TRY(Arena* const found, arena_of(session, id));
    if (!found->published || found->published->maker == session) return found;
    return fabricshm::explain({Errc::kDenied, 0, "find arena"},
                              "arena '%s': its readers make nothing there", found->name.c_str());
}

Result<Arena*> Books::arena_held_by(SessionId session, ArenaId id) {
    Arena* found = find_arena(id);
    if (found == nullptr || found->sessions.count(session) == 0 || is_ending(session) ||
        is_leaving(session, id)) {
        return Error{Errc::kNotFound, 0, "find arena"};
    }
    return found;
}

bool Books::is_being_left(const Arena& arena) const {
    const bool any_goes = !ending.empty() || !leaving.empty();
    return any_goes && !arena.sessions.empty() &&
           std::all_of(arena.sessions.begin(), arena.sessions.end(), [&](SessionId session) {
               return is_ending(session) || is_leaving(session, arena.id);
           });
}

std::vector<std::string> Books::problems() const {
    std::vector<std::string> found = contradictions();
    for (const auto& [id, arena] : arenas) {
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

std::vector<std::string> Books::contradictions() const {
    std::vector<std::string> found;
    // Counted afresh, to compare with the sessions' own counts.
    std::map<SessionId, std::pair<int, Bytes>> owned;
    std::map<std::uint32_t, int> pages;
    for (const auto& [id, arena] : arenas) {
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
            const auto session = sessions.find(member);
            const bool known = session != sessions.end() && session->second.arenas.count(id) != 0;
            if (!known) found.push_back("an arena has an unknown session");
        }
        check_publication(arena, &found);
        count_pages(arena, &pages);
    }
    for (const auto& [id, session] : sessions) {
        const auto [count, bytes] = owned[id];
        const bool equal = session.regions == count && session.bytes_owned == bytes;
        if (!equal) found.push_back("session " + std::to_string(raw(id)) + " is miscounted");
        owned.erase(id);
    }
    // What is left over is of sessions that are not there.
    if (!owned.empty()) found.push_back("regions of a session that does not exist");
    if (pages != pin_pages) found.push_back("pin pages are miscounted");
    // Those that end are no longer counted: see Sessions::begin_end().
    const auto live = std::count_if(sessions.begin(), sessions.end(),
                                    [](const auto& entry) { return !entry.second.ending; });
    if (users.sessions() != live) {
        found.push_back("sessions are miscounted");
    }
    return found;
}

}  // namespace fabricd
