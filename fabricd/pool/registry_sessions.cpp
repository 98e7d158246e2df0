// Registry: sessions. How they begin, lose their connection, come back and end.

#include <algorithm>
#include <cstring>
#include <limits>

#include "fabricd/pool/refusals.hpp"
#include "fabricd/pool/registry.hpp"
#include "libfabricshm/base/fault_point.hpp"

namespace fabricd {

Result<SessionId> Registry::open_session(const Peer& peer, const std::string& label,
                                         const Token& token, TimePoint now,
                                         const std::string& device) {
    // Sessions of before go on: draining is for a daemon that is to be replaced, and its jobs
    // should end by themselves.
    if (draining_) return refuse_while_draining("new sessions");
    auto counted = quotas_.take_session(peer.uid);
    if (!counted.ok()) {
        settle_endings(ArenaId::kNone, [&] {
            if (!counted.ok()) counted = quotas_.take_session(peer.uid);
            return counted.ok();
        });
        if (!counted.ok()) counted = quotas_.take_session(peer.uid);
    }
    FABRIC_TRY_VOID(counted);
    if (const auto attached = devices_.attach(device); !attached.ok()) {
        quotas_.give_session(peer.uid);
        return attached.error();
    }
    Session session;
    session.id = SessionId{next_id()};
    session.token = token;
    session.peer = peer;
    session.label = label;
    session.device = device;
    session.since = now;
    session.connected = true;
    if (const auto written = journal_.add(record_of(session)); !written.ok()) {
        devices_.detach(device);
        quotas_.give_session(peer.uid);
        return written.error();
    }
    // Written down, so it exists: from here on nothing can fail, and a restarted daemon knows it,
    // too.
    const SessionId id = session.id;
    sessions_.emplace(id, std::move(session));
    return id;
}

SessionRecord Registry::record_of(const Session& session) {
    SessionRecord record{};
    record.session = raw(session.id);
    std::copy(session.token.begin(), session.token.end(), record.token);
    record.pid = session.peer.pid;
    record.uid = session.peer.uid;
    record.gid = session.peer.gid;
    copy_name(record.label, session.label);
    copy_name(record.device, session.device);
    return record;
}

Result<void> Registry::resume_session(SessionId id, const Peer& peer, const Token& token) {
    Session* session = find_session(id);
    if (session == nullptr || session->ending) return Error{Errc::kNotFound, 0, "resume session"};
    FABRIC_TRY_VOID(resume_allowed(*session, peer, token));
    if (!session->connected) lost_.erase({session->lost_until, id});
    // Whatever the old connection was waiting for, the new one has to ask for again.
    cancel_waits(id, ArenaId::kNone, false);
    forget_closers(id);
    session->connected = true;
    return {};
}

// The token proves knowledge, the process identity that it was not merely copied: a forked child
// has the parent's token, but must open a session of its own.
Result<void> Registry::resume_allowed(const Session& session, const Peer& peer,
                                      const Token& token) const {
    unsigned differs = 0;  // all bytes are looked at, so that the time taken says nothing
    for (std::size_t i = 0; i < token.size(); ++i) differs |= token[i] ^ session.token[i];
    const bool same_process = peer.pid == session.peer.pid && peer.uid == session.peer.uid;
    if (differs != 0 || !same_process) return Error{Errc::kDenied, 0, "resume session"};
    return {};
}

Registry::SessionNames Registry::names_of(SessionId id) const {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return {};
    return {found->second.label, found->second.device};
}

Registry::SessionAccount Registry::account_of(SessionId id, ArenaId arena, GroupId group,
                                              int rank) const {
    SessionAccount books;
    const auto session = sessions_.find(id);
    if (session == sessions_.end()) return books;
    books.owned = session->second.bytes_owned;
    books.denied = session->second.bytes_denied;
    const auto job = arenas_.find(arena);
    if (job == arenas_.end()) return books;
    const auto found = job->second.groups.find(group);
    if (found == job->second.groups.end() || rank < 0 || rank >= found->second.world())
        return books;
    const Member& member = found->second.members[static_cast<std::size_t>(rank)];
    books.member = member.session == id && member.state == MemberState::kLive;
    return books;
}

std::uint32_t Registry::shards_open(SessionId session, const fabricshm::ShardReads* told) const {
    std::uint32_t open = 0;
    for (std::size_t i = 0; i < fabricshm::kShardsTold && told[i].shard != 0; ++i) {
        const auto found = shards_.find({ArenaId{told[i].arena}, RegionId{told[i].shard}});
        const bool reads = found != shards_.end() && found->second.readers.count(session) != 0;
        if (reads) open |= std::uint32_t{1} << i;
    }
    return open;
}

void Registry::connection_lost(SessionId id, TimePoint now) {
    Session* session = find_session(id);
    if (session == nullptr || !session->connected) return;
    cancel_waits(id, ArenaId::kNone, false);
    forget_closers(id);
    session->connected = false;
    session->lost_until = fabricshm::deadline_after(now, grace_);
    // No record of it: a daemon that is killed now gives every session the whole grace anew.
    lost_.emplace(session->lost_until, id);
}

void Registry::end_session(SessionId id, const char* why) {
    Session* session = find_session(id);
    if (session == nullptr || session->ending) return;
    fabricshm::log(fabricshm::LogLevel::kDebug, "session %llu (pid %d) ends: %s", shown(id),
                   session->peer.pid, why);
    begin_end(*session);
    slice_left_ = end_some(id, slice_left_);
}

void Registry::begin_end(Session& session) {
    const SessionId id = session.id;
    cancel_waits(id, ArenaId::kNone, false);
    forget_closers(id);
    if (!session.connected) lost_.erase({session.lost_until, id});
    session.connected = false;
    session.ending = true;

    // First: its process may be alive (away for too long, or its pool was given up). Were the
    // daemon killed half-way, the process could resume and go on using regions that are free again.
    journal_.note(SessionEndingRecord{raw(id)});
    FAULT_POINT("reclaim.begin");
    // Its peers see its death at once, however long giving back takes.
    for (const ArenaId arena : std::set<ArenaId>(session.arenas)) {
        if (!is_leaving(id, arena)) begin_leaving(session, *find_arena(arena));
    }
}

// There can be tens of thousands of regions: gives back `most` of them, then others are served.
// Returns how many of `most` are left; the session is gone then.
int Registry::end_some(SessionId id, int most) {
    ending_.erase(id);
    Session& session = *find_session(id);
    while (!session.arenas.empty()) {
        Arena& arena = *find_arena(*session.arenas.begin());
        most = reclaim_some(session, arena, most);
        if (!arena.leases.held_by(id).empty()) {
            ending_.insert(id);
            return 0;
        }
        finish_leaving(session, arena);
        FAULT_POINT("reclaim.arena");
    }
    // Last: a daemon that is killed before this line finds the session again and does all of it
    // once more.
    journal_.note(SessionEndRecord{raw(id)});
    quotas_.give_session(session.peer.uid);
    devices_.detach(session.device);
    sessions_.erase(id);
    FAULT_POINT("reclaim.end");
    return most;
}

// For a request that finds too little of anything: what an ended session still has on the books is
// not in its way, nor what is in an arena that was closed. Until there is enough, in slices, and of
// one arena (kNone: of all): what others left elsewhere would hold up this turn for nothing.
void Registry::settle_endings(ArenaId of, const std::function<bool()>& enough) {
    const int most = limits_.freed_at_once;
    for (const SessionId id : std::set<SessionId>(ending_)) {
        const auto concerns = [&] {
            return is_ending(id) &&
                   (of == ArenaId::kNone || find_session(id)->arenas.count(of) != 0);
        };
        while (concerns() && !enough()) (void)end_some(id, most);
    }
    for (const auto& entry : std::map(leaving_)) {
        const auto [session, arena] = entry.first;
        if (of != ArenaId::kNone && arena != of) continue;
        while (is_leaving(session, arena) && !enough()) (void)leave_some(session, arena, most);
    }
}

bool Registry::is_ending(SessionId id) const {
    return ending_.count(id) != 0;
}

// Whether all sessions that have it open are about to be gone: an open of its name makes a new one.
bool Registry::is_being_left(const Arena& arena) const {
    const bool any_goes = !ending_.empty() || !leaving_.empty();
    return any_goes && !arena.sessions.empty() &&
           std::all_of(arena.sessions.begin(), arena.sessions.end(), [&](SessionId session) {
               return is_ending(session) || is_leaving(session, arena.id);
           });
}

}  // namespace fabricd
