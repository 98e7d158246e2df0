#include "fabricd/pool/sessions.hpp"

#include <algorithm>
#include <set>

#include "fabricd/pool/refusals.hpp"
#include "fabricd/pool/waits.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"

namespace fabricd {

namespace {

SessionRecord record_of(const Session& session) {
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

SessionHostRecord host_record_of(const Session& session) {
    SessionHostRecord record{};
    record.session = raw(session.id);
    record.boot = session.peer.boot;
    record.incarnation = session.peer.incarnation;
    record.given_up = session.given_up ? 1 : 0;
    record.machine = session.peer.machine;
    record.pid_namespace = session.peer.pid_namespace;
    copy_name(record.host, session.peer.host);
    return record;
}

// The token proves knowledge, the process identity that it was not merely copied: a forked child
// has the parent's token, but must open a session of its own.
Result<void> resume_allowed(const Session& session, const Peer& peer, const Token& token) {
    unsigned differs = 0;  // all bytes are looked at, so that the time taken says nothing
    for (std::size_t i = 0; i < token.size(); ++i) differs |= token[i] ^ session.token[i];
    const bool same_process = peer.pid == session.peer.pid && peer.uid == session.peer.uid &&
                              peer.is_seen_with(session.peer);
    if (differs != 0 || !same_process) return Error{Errc::kDenied, 0, "resume session"};
    return {};
}

}  // namespace

Result<SessionId> Sessions::open(const Peer& peer, const std::string& label, const Token& token,
                                 TimePoint now, const std::string& device) {
    // Sessions of before go on: draining is for a daemon that is to be replaced, and its jobs
    // should end by themselves.
    if (books_.draining) return refuse_while_draining("new sessions");
    FABRIC_TRY_VOID(books_.users.take_session(peer.uid));
    if (const auto attached = books_.devices.attach(device); !attached.ok()) {
        books_.users.give_session(peer.uid);
        return attached.error();
    }
    Session session;
    session.id = SessionId{books_.next_id()};
    session.token = token;
    session.peer = peer;
    session.label = label;
    session.device = device;
    session.since = now;
    session.connected = true;
    auto written = journal_.add(record_of(session));
    if (written.ok() && peer.is_remote()) written = journal_.add(host_record_of(session));
    if (!written.ok()) {
        // Should the first of the two be there: it names a session that holds nothing.
        books_.devices.detach(device);
        books_.users.give_session(peer.uid);
        return written.error();
    }
    // Written down, so it exists: from here on nothing can fail, and a restarted daemon knows it,
    // too.
    const SessionId id = session.id;
    if (peer.is_remote()) books_.remote.insert(id);
    books_.sessions.emplace(id, std::move(session));
    return id;
}

Result<void> Sessions::resume(SessionId id, const Peer& peer, const Token& token,
                              ComeBack purpose) {
    Session* session = books_.find_session(id);
    if (session == nullptr || session->ending) return Error{Errc::kNotFound, 0, "resume session"};
    FABRIC_TRY_VOID(resume_allowed(*session, peer, token));
    // The others have gone on without it, for good.
    if (session->given_up && purpose == ComeBack::kToGoOn)
        return Error{Errc::kNotFound, 0, "resume session"};
    // Its host may have another lease by now.
    session->peer.incarnation = peer.incarnation;
    if (!session->connected) books_.lost.erase({session->lost_until, id});
    // Whatever the old connection was waiting for, the new one has to ask for again.
    drop_waits(books_, id);
    arenas_.forget_closers(id);
    session->connected = true;
    return {};
}

void Sessions::connection_lost(SessionId id, TimePoint now) {
    Session* session = books_.find_session(id);
    if (session == nullptr || !session->connected) return;
    drop_waits(books_, id);
    arenas_.forget_closers(id);
    session->connected = false;
    session->lost_until = fabricshm::deadline_after(now, books_.grace);
    // No record of it: a daemon that is killed now gives every session the whole grace again.
    books_.lost.emplace(session->lost_until, id);
}

void Sessions::give_up(SessionId id, const char* why, SessionEnd how, Effects& out) {
    Session* session = books_.find_session(id);
    if (session == nullptr || session->ending || session->given_up) return;
    FABRIC_CHECK(session->peer.is_remote());
    const bool is_silent = how == SessionEnd::kGivenUp;
    fabricshm::log(is_silent ? fabricshm::LogLevel::kWarning : fabricshm::LogLevel::kInfo,
                   "session %llu (host %s, pid %d) is given up: %s; what it holds is kept until it "
                   "is known to have ended",
                   shown(id), session->peer.host.c_str(), session->peer.pid, why);
    drop_waits(books_, id);
    arenas_.forget_closers(id);
    if (!session->connected) books_.lost.erase({session->lost_until, id});
    session->connected = false;
    session->lost_until = TimePoint::max();
    session->given_up = true;
    // First: a daemon that is killed half-way must not think that it may come back.
    journal_.note(host_record_of(*session));
    for (const ArenaId arena : std::set<ArenaId>(session->arenas)) {
        if (!books_.is_leaving(id, arena)) arenas_.give_up(*session, books_.arena(arena), out);
    }
}

void Sessions::end(SessionId id, const char* why, int& slice, Effects& out) {
    Session* session = books_.find_session(id);
    if (session == nullptr || session->ending) return;
    fabricshm::log(fabricshm::LogLevel::kDebug, "session %llu (pid %d) ends: %s", shown(id),
                   session->peer.pid, why);
    begin_end(*session, out);
    slice = end_some(id, slice, out);
}

void Sessions::begin_end(Session& session, Effects& out) {
    const SessionId id = session.id;
    drop_waits(books_, id);
    arenas_.forget_closers(id);
    if (!session.connected) books_.lost.erase({session.lost_until, id});
    session.connected = false;
    session.ending = true;
    // What it holds is given back in pieces; the next session of its user need not wait for that.
    books_.users.give_session(session.peer.uid);

    // First: its process may be alive (away for too long, or its pool was given up). Were the
    // daemon killed half-way, the process could resume and go on using regions that are free again.
    journal_.note(SessionEndingRecord{raw(id)});
    FAULT_POINT("reclaim.begin");
    // Its peers see its death at once, however long giving back takes.
    for (const ArenaId arena : std::set<ArenaId>(session.arenas)) {
        if (!books_.is_leaving(id, arena)) arenas_.begin_leaving(session, books_.arena(arena), out);
    }
}

int Sessions::end_some(SessionId id, int most, Effects& out) {
    books_.ending.erase(id);
    Session& session = books_.session(id);
    while (!session.arenas.empty()) {
        Arena& arena = books_.arena(*session.arenas.begin());
        most = regions_.reclaim_some(session, arena, most);
        if (!arena.leases.held_by(id).empty()) {
            books_.ending.insert(id);
            return 0;
        }
        arenas_.finish_leaving(session, arena, out);
        FAULT_POINT("reclaim.arena");
    }
    // Last: a daemon that is killed before this line finds the session again and does all of it
    // once more.
    journal_.note(SessionEndRecord{raw(id)});
    FABRIC_CHECK(session.regions == 0 && session.bytes_owned == 0);
    books_.devices.detach(session.device);
    books_.sessions.erase(id);
    books_.remote.erase(id);
    FAULT_POINT("reclaim.end");
    return most;
}

Result<void> Sessions::restore(const PoolImage& image, TimePoint now) {
    for (const auto& [id, record] : image.sessions) {
        if (!ends_with_zero(record.label) || !ends_with_zero(record.device)) return kContradiction;
        Session& session = books_.sessions[id];
        session.id = id;
        std::copy(std::begin(record.token), std::end(record.token), session.token.begin());
        session.peer = Peer{record.pid, record.uid, record.gid};
        if (const auto host = image.hosts.find(id); host != image.hosts.end()) {
            if (!ends_with_zero(host->second.host)) return kContradiction;
            session.peer.host = host->second.host;
            session.peer.boot = host->second.boot;
            session.peer.incarnation = host->second.incarnation;
            session.peer.machine = host->second.machine;
            session.peer.pid_namespace = host->second.pid_namespace;
            session.given_up = host->second.given_up != 0;
            books_.remote.insert(id);
        }
        session.label = record.label;
        session.device = record.device;
        // It may be gone from the device file.
        books_.devices.restore(session.device);
        // Monotonic time does not outlive a start: ages begin again.
        session.since = now;
        session.lost_until = fabricshm::deadline_after(now, books_.grace);
        if (session.given_up) session.lost_until = TimePoint::max();
        if (!session.given_up) books_.lost.emplace(session.lost_until, id);
        books_.users.restore_session(record.uid);
    }
    return {};
}

Result<void> Sessions::write(const Session& session, JournalSink& sink) {
    FABRIC_TRY_VOID(sink.add(record_of(session)));
    if (session.peer.is_remote()) FABRIC_TRY_VOID(sink.add(host_record_of(session)));
    // Else it would be waited for after a restart, with half of what it had.
    if (session.ending) FABRIC_TRY_VOID(sink.add(SessionEndingRecord{raw(session.id)}));
    return {};
}

}  // namespace fabricd
