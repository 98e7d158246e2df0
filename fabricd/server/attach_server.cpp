#include "fabricd/server/attach_server.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fabricd/server/cluster_desk.hpp"
#include "fabricd/server/pin_desk.hpp"
#include "fabricd/server/presented_file.hpp"
#include "fabricd/server/remote_hosts.hpp"
#include "fabricd/server/requests.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/process.hpp"
#include "libfabricshm/os/random.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;
using fabricshm::Clock;
using fabricshm::Fd;
using fabricshm::LogLevel;
using fabricshm::UnixSocket;

namespace {

// A flood of connections delays those that are there by so many of them at a time.
constexpr int kAcceptsPerTurn = 8;
constexpr int kMessagesPerTurn = 16;  // of one connection: a flood does not starve the others

// Until what a user sent may be closed at last.
constexpr Duration kParkedAgain = std::chrono::milliseconds(100);

// Out of descriptors: until some may have come back.
constexpr Duration kAcceptAgain = std::chrono::milliseconds(100);

// Every call on a socket is a mere attempt: the control thread never waits for a client.

unsigned long long shown(SessionId session) {
    return static_cast<unsigned long long>(raw(session));
}

// The files of an arena that a session says it had: second descriptors, so that the client's own
// are not the last and are closed elsewhere.
Result<fabricshm::PresentedFiles> presented_files(const Registry& registry, SessionId session,
                                                  const Peer& peer, const proto::Message& request,
                                                  const std::vector<Fd>& descriptors) {
    fabricshm::PresentedFiles files;
    if (proto::type_of(request.header) != proto::Type::kArenaAdopt) return files;
    const auto all = registry.descriptors(ArenaId{request.arena.arena_id}, session);
    // Of another host: its daemon has compared the devices with its own, and a descriptor can't
    // come from there. Else no more than the arena has; how many those are the registry compares.
    const std::size_t wanted = std::max<std::size_t>(all.size(), 1);
    const std::size_t count = peer.is_remote() ? all.size() : std::min(descriptors.size(), wanted);
    for (std::size_t i = 0; i < count; ++i) {
        const int own = i < all.size() ? all[i] : -1;
        if (!peer.is_remote() && !is_harmless(descriptors[i], own)) {
            files = {};
            files.strange = i + 1;
            return files;
        }
        Fd file(::fcntl(peer.is_remote() ? own : descriptors[i].get(), F_DUPFD_CLOEXEC, 0));
        if (!file) return fabricshm::error_from_errno(errno, "adopt arena");
        if (i == 0) {
            files.fd = std::move(file);
        } else {
            files.others.push_back(std::move(file));
        }
    }
    return files;
}

void log_end(RefusalLog& endings, SessionId session, const char* why) {
    if (!endings.begins_line(Clock::now())) return;
    fabricshm::log(LogLevel::kInfo, "session %llu ends: %s", shown(session), why);
}

}  // namespace

AttachServer::AttachServer(EventLoop& loop, Registry& registry, SessionPages& pages,
                           fabricshm::Closer& closer, Listener listener, Admission admission,
                           const AttachLimits& limits)
    : loop_(loop),
      registry_(registry),
      pages_(pages),
      closer_(closer),
      listener_(std::move(listener)),
      admission_(std::move(admission)),
      limits_(limits),
      strangers_(closer),
      places_(limits.places, ::geteuid()) {}

AttachServer::~AttachServer() {
    loop_.remove(accepting_);
    for (auto& [id, connection] : connections_) {
        loop_.remove(connection.watch);
        closer_.close(connection.peer.uid, connection.socket.release());
    }
    for (const auto& [id, process] : processes_) loop_.remove(process.watch);
    strangers_.close(TimePoint::max());
    // Those that wait in its queue may have sent something, too.
    closer_.close(::geteuid(), listener_.release());
}

Result<void> AttachServer::start(int links) {
    links_ = links;
    // Before any client can say hello: a session whose process is gone must not be there to be
    // resumed.
    watch_restored();
    FABRIC_TRY(accepting_,
               loop_.add(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept(); }));
    return {};
}

// A burst of a whole job goes in a few turns, and what is connected is served in between.
void AttachServer::accept() {
    const bool can_go_on = listener_.accept(
        kAcceptsPerTurn, [this](UnixSocket socket) { admit(std::move(socket)); }, Clock::now());
    if (can_go_on) return;
    // What waits in the queue stays there: it would only keep the loop awake.
    loop_.remove(accepting_);
    accepting_ = 0;
    accept_again_ = fabricshm::deadline_after(Clock::now(), kAcceptAgain);
}

// Sessions of the journal whose process is gone already need no grace. A process that has the same
// number by chance is no harm: it has not got the token.
void AttachServer::watch_restored() {
    for (const SessionView& session : registry_.snapshot(Clock::now()).sessions) {
        if (!session.host.empty()) continue;  // greet_guest() hears of it
        auto pidfd = fabricshm::open_pidfd(session.pid);
        const SessionId id{session.id};
        if (pidfd.ok()) {
            const auto watched = watch_process(id, std::move(pidfd).value());
            if (!watched.ok())
                fabricshm::log(LogLevel::kWarning, "%s", describe(watched.error()).c_str());
        } else if (pidfd.error().code == Errc::kNotFound) {
            end_session(id, "its process ended while there was no daemon");
        }
    }
    for (const auto& [session, pid] : registry_.pins.in_use()) {
        auto pidfd = fabricshm::open_pidfd(pid);
        if (pidfd.ok()) {
            const auto watched = watch_process(session, std::move(pidfd).value());
            if (!watched.ok())
                fabricshm::log(LogLevel::kWarning, "%s", describe(watched.error()).c_str());
        } else if (pidfd.error().code == Errc::kNotFound) {
            registry_.pins.process_ended(session);
        }
    }
}

// ---- Connections -------------------------------------------------------------------------------

void AttachServer::admit(UnixSocket socket) {
    const auto credentials = socket.peer();
    const Peer peer =
        credentials.ok() ? Peer{credentials->pid, credentials->uid, credentials->gid} : Peer{};
    // Before anything of it is read. A peer without credentials is refused as well.
    if (!credentials.ok() || !admission_.admits(peer.uid, peer.gid, socket.get())) {
        const Error error{Errc::kDenied, 0, "this user is not admitted"};
        log_.refusals.refused("connection", peer.pid, peer.uid, error, Clock::now());
        return strangers_.send_away(std::move(socket), peer.uid, error, Clock::now());
    }
    take(std::move(socket), peer);
}

void AttachServer::take(UnixSocket socket, const Peer& peer) {
    if (!places_.has_room(peer.uid)) {
        log_.refusals.refused("connection", peer.pid, peer.uid, {Errc::kNoMemory, 0, "connections"},
                              Clock::now());
        return closer_.close(peer.uid, socket.release());
    }
    const ConnectionId id = ++last_;
    Outbox::bound_unread(socket);
    const auto watch =
        loop_.add(socket.get(), EPOLLIN, [this, id](std::uint32_t) { read_from(id); });
    if (!watch.ok()) {
        fabricshm::log(LogLevel::kError, "%s", describe(watch.error()).c_str());
        return closer_.close(peer.uid, socket.release());
    }
    Connection& connection = connections_[id];
    connection.socket = std::move(socket);
    connection.peer = peer;
    connection.watch = watch.value();
    connection.hello_until = fabricshm::deadline_after(Clock::now(), limits_.hello_within);
    greeting_.insert(id);
    places_.take(peer.uid);
}

// True when the next packet is left where it is: it has descriptors, and those that its user sent
// before are not closed yet. The connection keeps its place until they are, so that such packets
// end when the user's places do.
bool AttachServer::park(ConnectionId id) {
    Connection& connection = connections_.at(id);
    if (parked_.count(id) != 0) return true;
    if (!closer_.is_full(connection.peer.uid) || !connection.socket.has_descriptors()) return false;
    log_.refusals.refused("descriptors", connection.peer.pid, connection.peer.uid,
                          {Errc::kBusy, 0, "those before are not closed yet"}, Clock::now());
    loop_.remove(connection.watch);
    connection.watch = 0;
    // It may say no hello any more, so it is not waited for as those are that may.
    greeting_.erase(id);
    parked_.insert(id);
    return true;
}

// The session, if there is one, is notified that it has no connection; it may come back.
void AttachServer::drop(ConnectionId id, const char* why) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    // Out of the map before anything is called: what follows may drop other connections, and would
    // meet this one half gone.
    Connection connection = std::move(found->second);
    connections_.erase(found);
    greeting_.erase(id);
    parked_.erase(id);
    stalled_.erase({connection.stalled_at, id});
    loop_.remove(connection.watch);
    places_.give_back(connection.peer.uid, connection.is_greeted);
    // With what the client sent and the daemon has not read.
    closer_.close(connection.peer.uid, connection.socket.release());
    fabricshm::log(LogLevel::kDebug, "connection of pid %d closed: %s", connection.peer.pid, why);

    const auto process = processes_.find(connection.session);
    // A session that already has a new connection does not miss the old one.
    if (process == processes_.end() || process->second.connection != id) return;
    process->second.connection = 0;
    registry_.connection_lost(connection.session, Clock::now());
}

// It has sent something, or reads again.
void AttachServer::read_from(ConnectionId id) {
    const bool keeps_up = connections_.count(id) != 0 && send_held(id);
    for (int i = 0; keeps_up && i < kMessagesPerTurn && read_one(id); ++i) {
    }
    deliver();
}

// False when there is nothing more to read now, or ever.
bool AttachServer::read_one(ConnectionId id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return false;
    // A client that does not read what it asked for asks for nothing more: so what waits for it is
    // bounded.
    if (!found->second.outbox.empty()) return false;
    if (park(id)) return false;
    proto::Message request;
    std::memset(&request, 0, sizeof request);
    std::vector<Fd> descriptors;
    const std::uint32_t uid = found->second.peer.uid;
    const auto received = found->second.socket.receive_all(proto::writable_bytes_of(request),
                                                           descriptors, fabricshm::kNoWait);
    const bool goes_on = received.ok() ? handle(id, request, *received, descriptors)
                                       : end_of_packets(id, received.error());
    // Whatever came of it: what the client sent is not closed on this thread.
    for (Fd& descriptor : descriptors) closer_.close(uid, std::move(descriptor));
    return goes_on;
}

// Nothing more now, or ever. False.
bool AttachServer::end_of_packets(ConnectionId id, const Error& error) {
    const auto found = connections_.find(id);
    // Nothing more in the socket now.
    if (error.code == Errc::kTimeout) return false;
    const SessionId session = found->second.session;
    if (error.code != Errc::kClosed) {
        log_.refusals.refused("packet", found->second.peer.pid, found->second.peer.uid, error,
                              Clock::now());
    }
    drop(id, "end of packets");
    // Its process often is at an end too; then there is nothing to wait for.
    const auto process = processes_.find(session);
    if (process != processes_.end() && process->second.pidfd &&
        !fabricshm::pidfd_alive(process->second.pidfd)) {
        end_session(session, "its process ended");
    }
    return false;
}

bool AttachServer::handle(ConnectionId id, const proto::Message& request, std::size_t bytes,
                          std::vector<Fd>& descriptors) {
    const auto checked = proto::check_request(request, bytes);
    Connection& connection = connections_.at(id);
    if (!checked.ok()) {
        if (!refuse(id, request.header, checked.error())) return false;
        // A wrong field is the program's mistake and an answer to it; a wrong version or size is a
        // program that will not understand any answer.
        if (checked.error().code == Errc::kInvalid) return true;
        drop(id, "speaks another protocol");
        return false;
    }
    const proto::Type type = proto::type_of(request.header);
    const bool is_farewell = type == proto::Type::kBye && request.hello.session_id != 0 &&
                             connection.session == SessionId::kNone;
    if (type == proto::Type::kHello || is_farewell) return hello(id, request);
    if (connection.session == SessionId::kNone) {
        if (refuse(id, request.header, {Errc::kInvalid, 0, "hello comes first"})) {
            drop(id, "no hello");
        }
        return false;
    }
    if (type == proto::Type::kBye) {
        end_session(connection.session, "goodbye");
        return false;
    }
    const bool is_shard = type == proto::Type::kShardCreate || type == proto::Type::kShardOpen;
    if (is_shard && connection.peer.is_remote()) {
        return refuse(id, request.header, {Errc::kUnsupported, 0, "shards are of one host"});
    }
    const bool page = type == proto::Type::kTelemetryOpen || type == proto::Type::kDirectivesOpen;
    if (page && connection.peer.is_remote()) {
        return refuse(id, request.header,
                      {Errc::kUnsupported, 0, "pages are shared on one host only"});
    }
    if (page) return open_page(id, request);
    if (connection.peer.is_remote() && is_of_one_host(request)) {
        return refuse(id, request.header,
                      fabricshm::explain({Errc::kUnsupported, 0, "published arena"},
                                         "published arenas are for processes of the host whose "
                                         "fabricd owns the pool; this one is its guest"));
    }
    if (is_about_pins(type)) {
        Packet reply = pin_reply(registry_, connection.session, request, descriptors);
        if (reply.message.header.status == 0) return send(id, std::move(reply));
        return refuse(id, request.header, proto::error_of(reply.message, "answer"));
    }
    const bool subscribes =
        type == proto::Type::kArenaOpen && (request.arena_open.flags & proto::kArenaSubscribe) != 0;
    if (subscribes) {
        registry_.pins.learn_groups(connection.session, groups_of_peer(connection.socket.get()));
    }
    if (is_for_cluster(type)) return send(id, {cluster_reply(request, limits_.cluster), {}, {}});
    return serve_request(id, request, descriptors);
}

bool AttachServer::serve_request(ConnectionId id, const proto::Message& request,
                                 std::vector<Fd>& descriptors) {
    const SessionId session = connections_.at(id).session;
    const proto::Type type = proto::type_of(request.header);
    const TimePoint began = Clock::now();
    auto presented =
        presented_files(registry_, session, connections_.at(id).peer, request, descriptors);
    const auto reply =
        presented.ok() ? serve(registry_, session, request, std::move(presented).value(), began)
                       : std::optional(proto::make_error_reply(request.header, presented.error()));
    stats_.count(type, Clock::now() - began);
    if (!reply) {
        deliver();
        return connections_.count(id) != 0;
    }
    if (reply->header.status != 0) {
        const Peer peer = connections_.at(id).peer;
        stats_.refused(type, static_cast<Errc>(reply->header.status));
        log_.refusals.refused(proto::name_of(type), peer.pid, peer.uid,
                              proto::error_of(*reply, "answer"), Clock::now());
    }
    const bool sent = send(id, {*reply, {}, {}});
    deliver();
    return sent && connections_.count(id) != 0;
}

// ---- Sessions and their processes --------------------------------------------------------------

// A hello, or the goodbye of a session that has no connection, and was given up perhaps. Its
// process says that until it is answered.
bool AttachServer::hello(ConnectionId id, const proto::Message& request) {
    Connection& connection = connections_.at(id);
    const bool is_farewell = proto::type_of(request.header) == proto::Type::kBye;
    Token token{};
    const auto session = greet(connection, request, &token);
    if (is_farewell && session.ok()) {
        end_session(session.value(), "goodbye, said again");
        return send(id, {proto::make_reply(request), {}, {}});
    }
    if (is_farewell && session.error().code == Errc::kNotFound) {
        // Most often a goodbye before this one has ended it: no refusal to be counted.
        return send(id, {proto::make_error_reply(request.header, session.error()), {}, {}});
    }
    if (!session.ok()) {
        const bool told = refuse(id, request.header, session.error());
        // A client that claims another's session is not kept either; a full house may be tried
        // again.
        if (told && session.error().code == Errc::kDenied) drop(id, "not that session");
        return connections_.count(id) != 0;
    }
    // After the session is there: one without a way to notice its process's death would hold its
    // memory for ever, and is ended again.
    // Of a process on another host its daemon speaks.
    const bool is_remote = connection.peer.is_remote();
    auto pidfd = is_remote ? Result<Fd>(Fd()) : connection.socket.peer_pidfd();
    const auto end_unwatched = [&] {
        registry_.end_session(session.value(), "its process cannot be watched",
                              SessionEnd::kMayLive);
        pages_.end(raw(session.value()));
        drop(id, "its process cannot be watched");
        return false;
    };
    if (!pidfd.ok()) return end_unwatched();
    const auto older = processes_.find(session.value());
    // A process that lost its connection may be faster to return than the kernel to report the
    // loss.
    const ConnectionId replaced = older == processes_.end() ? 0 : older->second.connection;
    forget_process(session.value());
    if (replaced != 0) drop(replaced, "its session has a new connection");
    if (!watch_process(session.value(), std::move(pidfd).value()).ok()) return end_unwatched();
    processes_.at(session.value()).connection = id;
    connection.session = session.value();
    connection.is_greeted = true;
    greeting_.erase(id);
    places_.greeted(connection.peer.uid);
    // Its arenas' files: no other client has any to show.
    if (request.hello.session_id != 0) (void)connection.socket.allow_descriptors(true);

    proto::Message reply = proto::make_reply(request);
    reply.hello.session_id = raw(session.value());
    std::copy(token.begin(), token.end(), reply.hello.token);
    reply.hello.daemon_epoch = registry_.daemon_epoch();
    std::ranges::copy(limits_.instance, reply.hello.instance);
    std::ranges::copy(limits_.pool, reply.hello.pool);
    limits_.visibility.copy(reply.hello.visibility, sizeof reply.hello.visibility - 1);
    reply.hello.last_type = static_cast<std::uint16_t>(proto::kLastType);
    reply.hello.default_arena_bytes = static_cast<std::int64_t>(limits_.default_arena_bytes);
    return send(id, {reply, {}, {}});
}

// The session's telemetry or directive page: a matter between it and the control loop, of which the
// registry knows nothing.
bool AttachServer::open_page(ConnectionId id, const proto::Message& request) {
    const Connection& connection = connections_.at(id);
    auto names = registry_.names_of(connection.session);
    const PageOwner owner{raw(connection.session), connection.peer.pid, connection.peer.uid,
                          std::move(names.label), std::move(names.device)};
    const bool telemetry = proto::type_of(request.header) == proto::Type::kTelemetryOpen;
    auto page = telemetry ? pages_.open_telemetry(owner) : pages_.open_directives(owner);
    if (!page.ok()) return refuse(id, request.header, page.error());
    if (!telemetry) {
        const auto quotas = registry_.quotas_of(owner.device, owner.uid, Clock::now());
        pages_.tell_quota(owner.session_id, quotas);
    }
    proto::Message reply = proto::make_reply(request);
    reply.page.bytes = telemetry ? fabricshm::kTelemetryFileBytes : fabricshm::kPageFileBytes;
    return send(id, {reply, {}, std::move(page).value()});
}

Result<SessionId> AttachServer::greet(Connection& connection, const proto::Message& request,
                                      Token* token) {
    const proto::Hello& wanted = request.hello;
    const bool leaves = proto::type_of(request.header) == proto::Type::kBye;
    if (connection.session != SessionId::kNone) return Error{Errc::kInvalid, 0, "hello twice"};
    const Peer& peer = connection.peer;
    // A session that comes back proves by its token that it is the one: process ids are used again,
    // and users have many processes.
    if (wanted.session_id != 0) {
        std::copy(std::begin(wanted.token), std::end(wanted.token), token->begin());
        const SessionId session{wanted.session_id};
        FABRIC_TRY_VOID(registry_.resume_session(session, peer, *token,
                                                 leaves ? ComeBack::kToLeave : ComeBack::kToGoOn));
        return session;
    }
    // From the kernel: a token that can be guessed is another process's session.
    FABRIC_TRY_VOID(fabricshm::fill_random(std::as_writable_bytes(std::span(*token))));
    return registry_.open_session(peer, wanted.label, *token, Clock::now(), wanted.device);
}

Result<void> AttachServer::watch_process(SessionId session, Fd pidfd) {
    if (!pidfd) {
        processes_[session] = Process{};
        return {};
    }
    FABRIC_TRY(const EventLoop::WatchId watch,
               loop_.add(pidfd.get(), EPOLLIN, [this, session](std::uint32_t) {
                   end_session(session, "its process ended");
                   registry_.pins.process_ended(session);
                   deliver();
               }));
    processes_[session] = Process{std::move(pidfd), watch, 0};
    return {};
}

void AttachServer::forget_process(SessionId session) {
    const auto found = processes_.find(session);
    if (found == processes_.end()) return;
    loop_.remove(found->second.watch);
    processes_.erase(found);
}

void AttachServer::end_session(SessionId session, const char* why, SessionEnd how) {
    const auto found = processes_.find(session);
    const ConnectionId connection = found == processes_.end() ? 0 : found->second.connection;
    forget_process(session);
    if (how == SessionEnd::kEnded) log_end(log_.endings, session, why);
    registry_.end_session(session, why, how);
    pages_.end(raw(session));
    if (connection != 0) drop(connection, why);
}

// ---- Answers -----------------------------------------------------------------------------------

void AttachServer::deliver() {
    // Dropping a connection may end waits of others, so there may be new answers afterwards.
    for (auto answers = registry_.take_answers(); !answers.empty();
         answers = registry_.take_answers()) {
        for (const Answer& answer : answers) {
            const auto process = processes_.find(answer.to.session);
            if (answer.error.code != Errc::kOk) stats_.refused(answer.type, answer.error.code);
            if (process == processes_.end() || process->second.connection == 0) continue;
            // Arenas are the only answers with a descriptor; pages have theirs in open_page().
            Packet packet{reply_of(answer), {}, {}};
            if (const auto* arena = std::get_if<proto::ArenaOpen>(&answer.body)) {
                packet.arena = ArenaId{arena->arena_id};
                packet.has_links = arena->link_bytes != 0;
            }
            send(process->second.connection, std::move(packet));
        }
    }
}

// False when the connection is gone afterwards.
bool AttachServer::send(ConnectionId id, Packet packet) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return false;
    Connection& connection = found->second;
    const auto send_later = [this, id](const proto::Message& reply) { send(id, {reply, {}, {}}); };
    if (limits_.guests != nullptr &&
        limits_.guests->holds(connection.session, packet.message, send_later)) {
        return true;
    }
    const bool kept_up = connection.outbox.empty();
    const auto sent = connection.outbox.push(
        connection.socket, std::move(packet),
        [&](ArenaId arena) { return registry_.descriptors(arena, connection.session); }, links_,
        limits_.replies);
    if (!sent.ok()) {
        cut_off(id, sent.error());
        return false;
    }
    if (kept_up && !connection.outbox.empty()) {
        loop_.change(connection.watch, EPOLLOUT);
        connection.stalled_at =
            fabricshm::deadline_after(Clock::now(), limits_.replies.named_after);
        stalled_.insert({connection.stalled_at, id});
    }
    return true;
}

// What is held for it, now that it reads. True when it may be read again.
bool AttachServer::send_held(ConnectionId id) {
    Connection& connection = connections_.at(id);
    if (connection.outbox.empty()) return true;
    const auto sent = connection.outbox.flush(
        connection.socket,
        [&](ArenaId arena) { return registry_.descriptors(arena, connection.session); }, links_);
    if (!sent.ok()) cut_off(id, sent.error());
    if (!sent.ok() || !connection.outbox.empty()) return false;
    stalled_.erase({connection.stalled_at, id});
    loop_.change(connection.watch, EPOLLIN);
    return true;
}

// It may come back, as one that lost its connection.
void AttachServer::cut_off(ConnectionId id, const Error& error) {
    const Connection& connection = connections_.at(id);
    if (log_.stalls.begins_line(Clock::now())) {
        fabricshm::log(LogLevel::kWarning,
                       "session %llu of pid %d, uid %u is disconnected with %zu replies unsent: %s",
                       shown(connection.session), connection.peer.pid, connection.peer.uid,
                       connection.outbox.size() + 1, describe(error).c_str());
    }
    drop(id, "cannot be answered");
}

bool AttachServer::refuse(ConnectionId id, const proto::Header& request, const Error& error) {
    const Connection& connection = connections_.at(id);
    stats_.refused(proto::type_of(request), error.code);
    log_.refusals.refused(proto::name_of(proto::type_of(request)), connection.peer.pid,
                          connection.peer.uid, error, Clock::now());
    if (error.code == Errc::kCorrupt) {
        drop(id, "sent what is no request");
        return false;
    }
    return send(id, {proto::make_error_reply(request, error), {}, {}});
}

// ---- Time --------------------------------------------------------------------------------------

void AttachServer::expire(TimePoint now) {
    while (!greeting_.empty() && connections_.at(*greeting_.begin()).hello_until <= now) {
        drop(*greeting_.begin(), "never said hello");
    }
    strangers_.close(now);
    if (accept_again_ <= now) {
        const auto watch = loop_.add(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
        accept_again_ =
            watch.ok() ? TimePoint::max() : fabricshm::deadline_after(now, kAcceptAgain);
        if (watch.ok()) accepting_ = watch.value();
    }
    if (!parked_.empty() && parked_until_ <= now) release_parked(now);
    name_stalled(now);
    for (const SessionId session : registry_.expire(now)) {
        log_end(log_.endings, session, "it did not come back in time");
        // What it has pinned stays so until its process ends.
        if (!registry_.pins.may_be_used(session)) forget_process(session);
        pages_.end(raw(session));
    }
    tell_quotas(now);
    // At every tick, if nothing else: what a flood left out is known when the flood is over.
    log_.tell_left_out(now);
    deliver();
}

// Once for each time that it stops to read.
void AttachServer::name_stalled(TimePoint now) {
    for (; !stalled_.empty() && stalled_.begin()->first <= now; stalled_.erase(stalled_.begin())) {
        const Connection& connection = connections_.at(stalled_.begin()->second);
        if (!log_.stalls.begins_line(now)) continue;
        fabricshm::log(LogLevel::kWarning,
                       "session %llu of pid %d, uid %u does not read its replies: %zu wait, and "
                       "what it asks is not served until it does; end the process if it hangs",
                       shown(connection.session), connection.peer.pid, connection.peer.uid,
                       connection.outbox.size());
    }
}

void AttachServer::release_parked(TimePoint now) {
    parked_until_ = fabricshm::deadline_after(now, kParkedAgain);
    const std::set<ConnectionId> parked = parked_;
    for (const ConnectionId id : parked) {
        const auto found = connections_.find(id);
        if (found == connections_.end() || closer_.is_full(found->second.peer.uid)) continue;
        Connection& connection = found->second;
        // What it has yet to read comes before anything new.
        const std::uint32_t events = connection.outbox.empty() ? EPOLLIN : EPOLLOUT;
        const auto watch = loop_.add(connection.socket.get(), events,
                                     [this, id](std::uint32_t) { read_from(id); });
        if (!watch.ok()) continue;  // another time
        connection.watch = watch.value();
        parked_.erase(id);
        if (!connection.is_greeted) greeting_.insert(id);
    }
}

}  // namespace fabricd
