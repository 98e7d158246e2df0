#include "fabricd/ctl/dashboard/job_scope.hpp"

#include <algorithm>

namespace fabricd {

JobScope::JobScope(const Picture& picture, const PictureQuery& query) : query_(query) {
    if (is_all()) return;
    for (const SessionView& session : picture.sessions) {
        if (has(session)) sessions_.insert(session.id);
    }
    for (const SessionSample& session : picture.telemetry.sessions) {
        const bool is_ours = has(session);
        if (is_ours) sessions_.insert(session.session_id);
        // By the daemon's records and not by the session's word.
        if (!session.member) continue;
        (is_ours ? groups_ : groups_of_others_).insert(session.image.group_id);
    }
    for (const ArenaView& arena : picture.arenas) {
        const auto is_ours = [&](std::uint64_t session) { return sessions_.contains(session); };
        if (std::any_of(arena.session_ids.begin(), arena.session_ids.end(), is_ours)) {
            arenas_.insert(arena.id);
        }
    }
    // Paths have no more than the number of their group.
    for (const GroupView& group : picture.groups) {
        if (has(group)) groups_.insert(group.id);
    }
}

bool JobScope::is_job(std::string_view label, std::uint32_t uid) const {
    if (query_.user) return label == query_.match && uid == *query_.user;
    return label.find(query_.match) != label.npos;
}

bool JobScope::has_text(std::string_view name) const {
    return !query_.user && name.find(query_.match) != name.npos;
}

bool JobScope::is_group(std::uint64_t group_id, std::uint64_t arena_id) const {
    if (groups_.contains(group_id)) return true;
    return arenas_.contains(arena_id) && !groups_of_others_.contains(group_id);
}

bool JobScope::has(const ArenaView& arena) const {
    return is_all() || arenas_.contains(arena.id) || has_text(arena.name);
}

bool JobScope::has(const GroupView& group) const {
    return is_all() || is_group(group.id, group.arena_id) || has_text(group.name);
}

bool JobScope::has(const ShardView& shard) const {
    return is_all() || arenas_.contains(shard.arena_id) ||
           sessions_.contains(shard.owner_session) || has_text(shard.name);
}

bool JobScope::has(const WaitingView& waiting) const {
    return is_all() || is_group(waiting.group_id, waiting.arena_id) || has_text(waiting.group) ||
           has_text(waiting.arena);
}

bool JobScope::has(const PathSample& path) const {
    return is_all() || groups_.contains(path.group_id);
}

}  // namespace fabricd
