#include "fabricd/server/attach_server.hpp"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fabricd/server/requests.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
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

constexpr int kAcceptsPerTurn = 32;
constexpr int kMessagesPerTurn = 16;  // of one connection: a flood does not starve the others

// Descriptors in packets that nobody reads count against the daemon's own limit, so a client gets
// them only while it keeps up. About eight unread replies.
constexpr int kUnreadBytesMax = 16 * 1024;

// Every call on a socket is a mere attempt: the control thread never waits for a client.
constexpr TimePoint kAtOnce{};

// What the kernel charges for packets that the peer has not read.
bool keeps_up(const UnixSocket& socket) {
    int unread = 0;
    return ::ioctl(socket.get(), SIOCOUTQ, &unread) == 0 && unread <= kUnreadBytesMax;
}

}  // namespace

AttachServer::AttachServer(EventLoop& loop, Registry& registry, SessionPages& pages,
                           Listener listener, Admission admission, const AttachLimits& limits)
    : loop_(loop),
      registry_(registry),
      pages_(pages),
      listener_(std::move(listener)),
      admission_(std::move(admission)),
      limits_(limits) {}

AttachServer::~AttachServer() {
    loop_.remove(accepting_);
    for (const auto& [id, connection] : connections_) loop_.remove(connection.watch);
    for (const auto& [id, process] : processes_) loop_.remove(process.watch);
}

Result<void> AttachServer::start() {
    // Before anybody can say hello: a session whose process is gone must not be there to be
    // resumed.
    watch_restored();
    FABRIC_TRY(accepting_, loop_.add(listener_.get(), EPOLLIN, [this](std::uint32_t) {
        // A burst of a whole job goes in a few turns, and what is connected is served in between.
        listener_.accept(kAcceptsPerTurn,
                         [this](UnixSocket socket) { take_connection(std::move(socket)); });
    }));
    return {};
}

// Sessions of the journal whose process is gone already need no grace. A process that has the same
// number by chance is no harm: it has not got the token.
void AttachServer::watch_restored() {
    for (const SessionView& session : registry_.snapshot(Clock::now()).sessions) {
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
}

// ---- Connections -------------------------------------------------------------------------------

void AttachServer::take_connection(UnixSocket socket) {
    const auto credentials = socket.peer();
    // Its socket closes here. Who it was cannot be said, so nothing is logged for it.
    if (!credentials.ok()) return;
    const Peer peer{credentials->pid, credentials->uid, credentials->gid};
    if (!has_room(peer.uid)) {
        refusals_.refused("connection", peer.pid, peer.uid, {Errc::kNoMemory, 0, "connections"},
                          Clock::now());
        return;
    }
    const ConnectionId id = ++last_;
    const auto watch =
        loop_.add(socket.get(), EPOLLIN, [this, id](std::uint32_t) { read_from(id); });
    if (!watch.ok()) {
        fabricshm::log(LogLevel::kError, "%s", describe(watch.error()).c_str());
        return;
    }
    Connection& connection = connections_[id];
    connection.socket = std::move(socket);
    connection.peer = peer;
    connection.watch = watch.value();
    connection.hello_until = fabricshm::deadline_after(Clock::now(), limits_.hello_within);
    greeting_.insert(id);
    ++per_user_[peer.uid];
}

bool AttachServer::has_room(std::uint32_t uid) const {
    if (static_cast<int>(connections_.size()) >= limits_.connections) return false;
    const auto found = per_user_.find(uid);
    return found == per_user_.end() || found->second < limits_.connections_per_user;
}

// The session, if there is one, is told that it has no connection; it may come back.
void AttachServer::drop(ConnectionId id, const char* why) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    // Out of the map before anything is called: what follows may drop other connections, and would
    // meet this one half gone.
    Connection connection = std::move(found->second);
    connections_.erase(found);
    greeting_.erase(id);
    loop_.remove(connection.watch);
    const auto user = per_user_.find(connection.peer.uid);
    if (--user->second == 0) per_user_.erase(user);
    fabricshm::log(LogLevel::kDebug, "connection of pid %d closed: %s", connection.peer.pid, why);

    const auto process = processes_.find(connection.session);
    // A session that already has a new connection does not miss the old one.
    if (process == processes_.end() || process->second.connection != id) return;
    process->second.connection = 0;
    registry_.connection_lost(connection.session, Clock::now());
}

void AttachServer::read_from(ConnectionId id) {
    for (int i = 0; i < kMessagesPerTurn && read_one(id); ++i) {
    }
    deliver();
}

// False when there is nothing more to read now, or ever.
bool AttachServer::read_one(ConnectionId id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return false;
    proto::Message request;
    std::memset(&request, 0, sizeof request);
    Fd descriptors[1];
    // One descriptor at most: no request has two, and what comes beyond is closed by the receiver.
    const auto received =
        found->second.socket.receive(proto::writable_bytes_of(request), descriptors, kAtOnce);
    if (received.ok()) return handle(id, request, received->bytes, std::move(descriptors[0]));
    const Error error = received.error();
    // Nothing more in the socket now.
    if (error.code == Errc::kTimeout) return false;
    const SessionId session = found->second.session;
    if (error.code != Errc::kClosed) {
        refusals_.refused("packet", found->second.peer.pid, found->second.peer.uid, error,
                          Clock::now());
    }
    drop(id, "end of packets");
    // Its process often is at an end too; then there is nothing to wait for.
    const auto process = processes_.find(session);
    if (process != processes_.end() && !fabricshm::pidfd_alive(process->second.pidfd)) {
        end_session(session, "its process ended");
    }
    return false;
}

bool AttachServer::handle(ConnectionId id, const proto::Message& request, std::size_t bytes,
                          Fd descriptor) {
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
    if (type == proto::Type::kHello) return hello(id, request);
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
    const bool page = type == proto::Type::kTelemetryOpen || type == proto::Type::kDirectivesOpen;
    if (page) return open_page(id, request);
    const TimePoint began = Clock::now();
    const auto reply = serve(registry_, connection.session, request, std::move(descriptor), began);
    stats_.count(type, Clock::now() - began);
    if (!reply) {
        deliver();
        return connections_.count(id) != 0;
    }
    if (reply->header.status != 0) {
        stats_.refused(type, static_cast<Errc>(reply->header.status));
        refusals_.refused(proto::name_of(type), connection.peer.pid, connection.peer.uid,
                          proto::error_of(*reply, "answer"), Clock::now());
    }
    const bool sent = send(id, *reply, -1);
    deliver();
    return sent && connections_.count(id) != 0;
}

// ---- Sessions and their processes --------------------------------------------------------------

bool AttachServer::hello(ConnectionId id, const proto::Message& request) {
    Connection& connection = connections_.at(id);
    Token token{};
    const auto session = greet(connection, request.hello, &token);
    if (!session.ok()) {
        const bool told = refuse(id, request.header, session.error());
        // Somebody who may not attach is not kept either; a full house may be tried again.
        if (told && session.error().code == Errc::kDenied) drop(id, "not admitted");
        return connections_.count(id) != 0;
    }
    // After the session is there: one without a way to notice its process's death would hold its
    // memory for ever, and is ended again.
    auto pidfd = connection.socket.peer_pidfd();
    if (!pidfd.ok()) {
        registry_.end_session(session.value(), "its process cannot be watched");
        pages_.end(raw(session.value()));
        drop(id, "its process cannot be watched");
        return false;
    }
    const auto older = processes_.find(session.value());
    // A process that lost its connection may be faster to return than the kernel to report the
    // loss.
    const ConnectionId replaced = older == processes_.end() ? 0 : older->second.connection;
    forget_process(session.value());
    if (replaced != 0) drop(replaced, "its session has a new connection");
    if (const auto watched = watch_process(session.value(), std::move(pidfd).value());
        !watched.ok()) {
        registry_.end_session(session.value(), "its process cannot be watched");
        pages_.end(raw(session.value()));
        drop(id, "its process cannot be watched");
        return false;
    }
    processes_.at(session.value()).connection = id;
    connection.session = session.value();
    greeting_.erase(id);

    proto::Message reply = proto::make_reply(request);
    reply.hello.session_id = raw(session.value());
    std::copy(token.begin(), token.end(), reply.hello.token);
    reply.hello.daemon_epoch = registry_.daemon_epoch();
    reply.hello.default_arena_bytes = static_cast<std::int64_t>(limits_.default_arena_bytes);
    return send(id, reply, -1);
}

// The session's telemetry or directive page: a matter between it and the control loop, of which the
// books know nothing.
bool AttachServer::open_page(ConnectionId id, const proto::Message& request) {
    const Connection& connection = connections_.at(id);
    auto names = registry_.names_of(connection.session);
    const PageOwner owner{raw(connection.session), connection.peer.pid, connection.peer.uid,
                          std::move(names.label), std::move(names.device)};
    const bool telemetry = proto::type_of(request.header) == proto::Type::kTelemetryOpen;
    const auto page = telemetry ? pages_.open_telemetry(owner) : pages_.open_directives(owner);
    if (!page.ok()) return refuse(id, request.header, page.error());
    if (!telemetry) {
        const auto quotas = registry_.quotas_of(owner.device, owner.uid, Clock::now());
        pages_.tell_quota(owner.session_id, quotas);
    }
    proto::Message reply = proto::make_reply(request);
    reply.page.bytes = telemetry ? fabricshm::kTelemetryFileBytes : fabricshm::kPageFileBytes;
    return send(id, reply, page->get());
}

Result<SessionId> AttachServer::greet(Connection& connection, const proto::Hello& wanted,
                                      Token* token) {
    if (connection.session != SessionId::kNone) return Error{Errc::kInvalid, 0, "hello twice"};
    const Peer& peer = connection.peer;
    if (!admission_.admits(peer.uid, peer.gid, connection.socket.get())) {
        return Error{Errc::kDenied, 0, "this user is not admitted"};
    }
    // A session that comes back proves by its token that it is the one: process ids are used again,
    // and users have many processes.
    if (wanted.session_id != 0) {
        std::copy(std::begin(wanted.token), std::end(wanted.token), token->begin());
        const SessionId session{wanted.session_id};
        FABRIC_TRY_VOID(registry_.resume_session(session, peer, *token));
        return session;
    }
    // From the kernel: a token that can be guessed is somebody else's session.
    FABRIC_TRY_VOID(fabricshm::fill_random(std::as_writable_bytes(std::span(*token))));
    return registry_.open_session(peer, wanted.label, *token, Clock::now(), wanted.device);
}

Result<void> AttachServer::watch_process(SessionId session, Fd pidfd) {
    FABRIC_TRY(const EventLoop::WatchId watch,
               loop_.add(pidfd.get(), EPOLLIN, [this, session](std::uint32_t) {
                   end_session(session, "its process ended");
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

void AttachServer::end_session(SessionId session, const char* why) {
    const auto found = processes_.find(session);
    const ConnectionId connection = found == processes_.end() ? 0 : found->second.connection;
    forget_process(session);
    registry_.end_session(session, why);
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
            const auto* arena = std::get_if<proto::ArenaOpen>(&answer.body);
            const int descriptor =
                arena == nullptr ? -1 : registry_.descriptor(ArenaId{arena->arena_id});
            send(process->second.connection, reply_of(answer), descriptor);
        }
    }
}

// False when the connection is gone afterwards.
bool AttachServer::send(ConnectionId id, const proto::Message& reply, int descriptor) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return false;
    const UnixSocket& socket = found->second.socket;
    if (descriptor >= 0 && !keeps_up(socket)) {
        drop(id, "does not read its replies");
        return false;
    }
    FAULT_POINT("reply.before");
    const auto sent = socket.send(
        proto::bytes_of(reply),
        descriptor < 0 ? std::span<const int>() : std::span<const int>(&descriptor, 1), kAtOnce);
    FAULT_POINT("reply.after");
    // Who has shut down hears no more, but what it sent before that has yet to be read: its
    // goodbye, as a rule. The end of its packets drops it.
    if (sent.ok() || sent.error().code == Errc::kClosed) return true;
    const bool slow = sent.error().code == Errc::kTimeout;
    if (slow) {
        refusals_.refused("reply", found->second.peer.pid, found->second.peer.uid, sent.error(),
                          Clock::now());
    }
    drop(id, slow ? "does not read its replies" : "cannot be answered");
    return false;
}

bool AttachServer::refuse(ConnectionId id, const proto::Header& request, const Error& error) {
    const Connection& connection = connections_.at(id);
    stats_.refused(proto::type_of(request), error.code);
    refusals_.refused(proto::name_of(proto::type_of(request)), connection.peer.pid,
                      connection.peer.uid, error, Clock::now());
    if (error.code == Errc::kCorrupt) {
        drop(id, "sent what is no request");
        return false;
    }
    return send(id, proto::make_error_reply(request, error), -1);
}

// ---- Time --------------------------------------------------------------------------------------

void AttachServer::expire(TimePoint now) {
    while (!greeting_.empty() && connections_.at(*greeting_.begin()).hello_until <= now) {
        drop(*greeting_.begin(), "never said hello");
    }
    for (const SessionId session : registry_.expire(now)) {
        forget_process(session);
        pages_.end(raw(session));
    }
    tell_quotas(now);
    deliver();
}

}  // namespace fabricd
