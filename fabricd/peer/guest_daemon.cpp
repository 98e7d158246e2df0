#include "fabricd/peer/guest_daemon.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>

#include "fabricd/peer/guest_link.hpp"
#include "fabricd/peer/guest_pool.hpp"
#include "fabricd/peer/guest_process.hpp"
#include "fabricd/pool/books.hpp"
#include "fabricd/server/admission.hpp"
#include "fabricd/server/cluster_desk.hpp"
#include "fabricd/server/connection_places.hpp"
#include "fabricd/server/descriptor_plan.hpp"
#include "fabricd/server/event_loop.hpp"
#include "fabricd/server/listener.hpp"
#include "fabricd/server/outbox.hpp"
#include "fabricd/server/presented_file.hpp"
#include "fabricd/server/range_flusher.hpp"
#include "fabricd/server/strangers.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/closer.hpp"
#include "libfabricshm/os/identity.hpp"
#include "libfabricshm/os/process.hpp"
#include "libfabricshm/os/random.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;
using fabricshm::LogLevel;
using fabricshm::UnixSocket;

namespace {

constexpr int kAcceptsPerTurn = 8;
constexpr int kMessagesPerTurn = 16;  // of one client, before the others have their turn
constexpr int kHandshakes = 64;       // connections beyond the sessions: on their way in or out
constexpr Duration kTick = std::chrono::seconds(1);
constexpr Duration kEndWithin = std::chrono::seconds(5);  // of processes that were killed

}  // namespace

struct GuestDaemon::Impl {
    using ConnectionId = std::uint64_t;
    using Ranges = std::set<OpenRange>;

    struct Client {
        UnixSocket socket;
        Peer peer;
        EventLoop::WatchId watch = 0;
        std::uint64_t session = 0;  // 0: no answer to its hello yet
        Outbox outbox;
        bool is_greeted = false;
        std::map<std::uint64_t, ArenaId> closing;  // by the number of the request
        std::uint64_t leaving = 0;  // without a hello: the session that says goodbye through it

        std::uint64_t talks_of() const { return leaving != 0 ? leaving : session; }
    };

    GuestOptions options;
    PoolMemory pool;
    fabricshm::HostIdentity identity;
    std::uint64_t instance = 0;
    ClusterDesk cluster;

    std::unique_ptr<EventLoop> loop;
    fabricshm::Closer closer;
    std::unique_ptr<Listener> listener;
    std::unique_ptr<Admission> admission;
    std::unique_ptr<ConnectionPlaces> places;
    std::unique_ptr<Strangers> strangers;
    EventLoop::WatchId accepting = 0;

    std::map<ConnectionId, Client> clients;
    ConnectionId last = 0;
    bool is_up = false;
    std::atomic<bool> is_draining{false};
    std::atomic<Bytes> used{0};  // of the pool, as its owner said last
    const TimePoint started = Clock::now();

    mutable std::mutex mutex;  // of what follows; written by the control thread alone
    std::shared_ptr<GuestLink> link;
    GuestProcesses processes;
    std::unique_ptr<RangeFlusher> flusher;  // if this host flushes; made by start()
    std::string trouble = "the owner of the pool has not answered yet";
    std::uint64_t ended_incarnation = 0;  // whose sessions were ended: none begins under it
    KnownSessions known_sessions;
    ~Impl() {
        end_link();
        flusher.reset();
        if (loop) loop->close();
    }

    Result<void> start();
    Result<void> start_link();
    void end_link();
    bool may_call(GuestName& name) const;
    void accept();
    void take(UnixSocket socket);
    void read_from(ConnectionId id);
    bool read_one(ConnectionId id);
    bool handle(ConnectionId id, const proto::Message& request, std::size_t bytes,
                std::vector<Fd>& descriptors);
    bool refuse(ConnectionId id, const proto::Message& request, const Error& error);
    void send(ConnectionId id, Packet packet);
    void drop(ConnectionId id);
    void from_owner(ConnectionId id, const std::string& bytes);
    void learn(ConnectionId id, const proto::Message& reply, Packet& packet);
    void came_up(const std::vector<KnownSession>& sessions);
    bool note_known(const KnownSession& entry);
    Ranges ranges_of(std::uint64_t session) const;
    void went_down(const std::string& why);
    Result<void> watch(std::uint64_t session, Fd pidfd, std::int32_t pid, std::uint32_t uid);
    void process_ended(std::uint64_t session);
    void flush_ended(std::uint64_t session, Ranges ranges);
    void flushed_ended(std::uint64_t session, const Result<void>& flushed);
    void hold(ConnectionId id, std::string packet, Ranges ranges);
    void let_go(ConnectionId id, std::string packet, const Result<void>& flushed);
    Result<void> serve();
    /// Events come from it alone, so that it is there while they are served.
    GuestLink& to_owner() { return *link; }
};

Result<void> GuestDaemon::Impl::start() {
    FABRIC_TRY(EventLoop made, EventLoop::make());
    loop = std::make_unique<EventLoop>(std::move(made));
    FABRIC_TRY(Admission admitted, Admission::make(options.allow_uids, options.socket_group));
    admission = std::make_unique<Admission>(std::move(admitted));
    FABRIC_TRY(Listener opened,
               Listener::open({options.socket_path, options.socket_mode}, *admission));
    listener = std::make_unique<Listener>(std::move(opened));
    const int wanted = options.max_sessions + kHandshakes;
    const int possible = connections_for(raise_descriptor_limit(), open_descriptors(), wanted);
    places = std::make_unique<ConnectionPlaces>(PlaceLimits{possible, possible}, ::geteuid());
    strangers = std::make_unique<Strangers>(closer);
    identity = fabricshm::own_host();
    FABRIC_TRY_VOID(fabricshm::fill_random(std::as_writable_bytes(std::span(&instance, 1))));
    if (options.flushes) {
        flusher = std::make_unique<RangeFlusher>([this](const OpenRange& range) {
            return pool.devices.flush(pool.stripes, range.offset, range.bytes);
        });
    }
    return {};
}

Result<void> GuestDaemon::Impl::start_link() {
    const auto post = [this](std::function<void()> task) { (void)loop->post(std::move(task)); };
    GuestEvents events;
    events.may_call = [this](GuestName& name) { return may_call(name); };
    events.read_mark = [this](std::uint32_t mark) { return pool.devices.read_mark(mark); };
    events.usage = [this](Bytes now) { used = now; };
    events.up = [this, post](const std::vector<KnownSession>& sessions) {
        post([this, sessions] { came_up(sessions); });
    };
    events.packet = [this, post](std::uint64_t id, std::string bytes) {
        post([this, id, bytes = std::move(bytes)] { from_owner(id, bytes); });
    };
    events.closed = [this, post](std::uint64_t id) { post([this, id] { drop(id); }); };
    events.down = [this, post](const std::string& why) { post([this, why] { went_down(why); }); };
    FABRIC_TRY(auto made, GuestLink::start(options.owner, options.files, std::move(events)));
    const std::lock_guard lock(mutex);
    link = std::move(made);
    return {};
}

// No event comes after that.
void GuestDaemon::Impl::end_link() {
    std::shared_ptr<GuestLink> last_one;
    {
        const std::lock_guard lock(mutex);
        last_one = std::move(link);
    }
}

// On the link's thread.
bool GuestDaemon::Impl::may_call(GuestName& name) const {
    name.host = options.host;
    name.boot = identity.boot;
    name.machine = identity.machine;
    name.pid_namespace = identity.pid_namespace;
    name.instance = instance;
    name.pool = pool.uuid;
    const auto view = cluster.view ? cluster.view() : nullptr;
    const bool has_leases = view != nullptr && view->store == "etcd";
    if (!has_leases) return true;
    name.incarnation = view->incarnation;
    const std::lock_guard lock(mutex);
    return view->admits && view->incarnation > ended_incarnation;
}

void GuestDaemon::Impl::accept() {
    (void)listener->accept(
        kAcceptsPerTurn, [this](UnixSocket socket) { take(std::move(socket)); }, Clock::now());
}

void GuestDaemon::Impl::take(UnixSocket socket) {
    const auto credentials = socket.peer();
    const Peer peer =
        credentials.ok() ? Peer{credentials->pid, credentials->uid, credentials->gid} : Peer{};
    if (!credentials.ok() || !admission->admits(peer.uid, peer.gid, socket.get())) {
        return strangers->send_away(std::move(socket), peer.uid,
                                    {Errc::kDenied, 0, "this user is not admitted"}, Clock::now());
    }
    if (is_draining) {
        return strangers->send_away(std::move(socket), peer.uid,
                                    {Errc::kBusy, 0, "fabricd is draining"}, Clock::now());
    }
    // The library tries again, as while any daemon is away, and has the reason when it gives up.
    if (!is_up) {
        const Error away = owner_is_away(options.owner, trouble);  // by this thread alone
        return strangers->send_away(std::move(socket), peer.uid, away, Clock::now());
    }
    if (!places->has_room(peer.uid)) return closer.close(peer.uid, socket.release());
    const ConnectionId id = ++last;
    Outbox::bound_unread(socket);
    const auto watched =
        loop->add(socket.get(), EPOLLIN, [this, id](std::uint32_t) { read_from(id); });
    if (!watched.ok()) return closer.close(peer.uid, socket.release());
    Client& client = clients[id];
    client.socket = std::move(socket);
    client.peer = peer;
    client.watch = watched.value();
    places->take(peer.uid);
    to_owner().opened(id, peer.pid, peer.uid, peer.gid);
}

void GuestDaemon::Impl::read_from(ConnectionId id) {
    Client& client = clients.at(id);
    if (!client.outbox.empty()) {
        const auto sent = client.outbox.flush(
            client.socket, [this](ArenaId) { return pool.devices.client_numbers(); }, -1);
        if (!sent.ok()) {
            to_owner().closed(id);
            return drop(id);
        }
        if (!client.outbox.empty()) return;
        loop->change(client.watch, EPOLLIN);
    }
    for (int i = 0; i < kMessagesPerTurn && read_one(id); ++i) {
    }
}

bool GuestDaemon::Impl::read_one(ConnectionId id) {
    const auto found = clients.find(id);
    if (found == clients.end() || !found->second.outbox.empty()) return false;
    proto::Message request;
    std::memset(&request, 0, sizeof request);
    std::vector<Fd> descriptors;
    const std::uint32_t uid = found->second.peer.uid;
    const auto received = found->second.socket.receive_all(proto::writable_bytes_of(request),
                                                           descriptors, fabricshm::kNoWait);
    bool goes_on = false;
    if (received.ok()) {
        goes_on = handle(id, request, *received, descriptors);
    } else if (received.error().code != Errc::kTimeout) {
        to_owner().closed(id);
        drop(id);
    }
    for (Fd& descriptor : descriptors) closer.close(uid, std::move(descriptor));
    return goes_on;
}

// What is not of this host goes to the owner, which checks it as a client's.
bool GuestDaemon::Impl::handle(ConnectionId id, const proto::Message& request, std::size_t bytes,
                               std::vector<Fd>& descriptors) {
    if (bytes == sizeof request && request.header.magic == proto::kMagic) {
        const proto::Type type = proto::type_of(request.header);
        if (is_for_cluster(type) && proto::check_request(request, bytes).ok()) {
            send(id, {cluster_reply(request, cluster), {}, {}});
            return clients.count(id) != 0;
        }
        if (type == proto::Type::kArenaAdopt) {
            const auto compared = compare_with(pool.devices, descriptors);
            if (!compared.ok()) {  // the owner grants nothing there, and lets no others in
                to_owner().presented_others(clients.at(id).session, request.arena.arena_id);
                return refuse(id, request, compared.error());
            }
        }
    }
    std::string packet(reinterpret_cast<const char*>(&request), bytes);
    Ranges ranges;
    if (bytes == sizeof request) {
        const std::lock_guard lock(mutex);
        Client& client = clients.at(id);
        if (!client.is_greeted) client.leaving = leaver_of(processes, client.peer.pid, request);
        ranges = ranges_before(processes, client.talks_of(), request);
    }
    const Client& client = clients.at(id);
    const bool is_farewell = bytes == sizeof request && !client.is_greeted &&
                             proto::type_of(request.header) == proto::Type::kBye;
    // What it wrote is known when its process can be watched: said again until then.
    if (is_farewell && known_sessions.unwatched.count(request.hello.session_id) != 0)
        return refuse(id, request, {Errc::kBusy, 0, "not watched"});
    // Of one that says goodbye again: its ranges are on their way out of the caches perhaps.
    const bool is_last = client.leaving != 0 && flusher != nullptr;
    if (!ranges.empty() || is_last) {
        hold(id, std::move(packet), std::move(ranges));
        return false;
    }
    to_owner().packet(id, std::move(packet));
    return true;
}

// Nothing more is read of the client until then: its packets keep their order.
void GuestDaemon::Impl::hold(ConnectionId id, std::string packet, Ranges ranges) {
    Client& client = clients.at(id);
    loop->remove(client.watch);
    client.watch = 0;
    const std::uint64_t session = client.talks_of();
    flusher->flush(ranges, [this, id, session, packet = std::move(packet),
                            ranges](const Result<void>& flushed) mutable {
        (void)loop->post([this, id, session, packet = std::move(packet), ranges, flushed] {
            // Before anything else of the session: it may say goodbye through another connection.
            if (!flushed.ok()) {
                const std::lock_guard lock(mutex);
                keep_ranges(processes, session, ranges);
            }
            let_go(id, packet, flushed);
        });
    });
}

void GuestDaemon::Impl::let_go(ConnectionId id, std::string packet, const Result<void>& flushed) {
    const auto found = clients.find(id);
    if (found == clients.end() || link == nullptr) return;
    Client& client = found->second;
    const std::uint32_t wanted = client.outbox.empty() ? EPOLLIN : EPOLLOUT;
    const auto watched =
        loop->add(client.socket.get(), wanted, [this, id](std::uint32_t) { read_from(id); });
    if (!flushed.ok() || !watched.ok()) {
        fabricshm::log(LogLevel::kError, "session %llu: %s",
                       static_cast<unsigned long long>(client.talks_of()),
                       describe(flushed.ok() ? watched.error() : flushed.error()).c_str());
        if (watched.ok()) loop->remove(watched.value());
        to_owner().closed(id);
        return drop(id);
    }
    client.watch = watched.value();
    // What an earlier goodbye of the same session was to write out, and could not.
    if (client.leaving != 0 && !ranges_of(client.leaving).empty()) {
        to_owner().closed(id);
        return drop(id);  // the client says it again
    }
    proto::Message request;
    std::memcpy(&request, packet.data(), sizeof request);
    if (proto::type_of(request.header) == proto::Type::kArenaClose) {
        client.closing[request.header.request_id] = ArenaId{request.arena.arena_id};
    }
    to_owner().packet(id, std::move(packet));
}

bool GuestDaemon::Impl::refuse(ConnectionId id, const proto::Message& request, const Error& error) {
    send(id, {proto::make_error_reply(request.header, error), {}, {}});
    return clients.count(id) != 0;
}

void GuestDaemon::Impl::send(ConnectionId id, Packet packet) {
    Client& client = clients.at(id);
    const bool kept_up = client.outbox.empty();
    const auto sent =
        client.outbox.push(client.socket, std::move(packet),
                           [this](ArenaId) { return pool.devices.client_numbers(); }, -1, {});
    if (!sent.ok()) {
        to_owner().closed(id);
        return drop(id);
    }
    if (kept_up && !client.outbox.empty()) loop->change(client.watch, EPOLLOUT);
}

void GuestDaemon::Impl::drop(ConnectionId id) {
    const auto found = clients.find(id);
    if (found == clients.end()) return;
    Client client = std::move(found->second);
    clients.erase(found);
    loop->remove(client.watch);
    places->give_back(client.peer.uid, client.is_greeted);
    closer.close(client.peer.uid, client.socket.release());
    const std::lock_guard lock(mutex);
    const auto process = processes.find(client.session);
    if (process != processes.end() && process->second.connection == id) {
        process->second.connection = 0;
    }
}

void GuestDaemon::Impl::from_owner(ConnectionId id, const std::string& bytes) {
    const auto found = clients.find(id);
    if (found == clients.end()) return;
    proto::Message reply;
    if (bytes.size() != sizeof reply) {
        to_owner().closed(id);
        return drop(id);
    }
    std::memcpy(&reply, bytes.data(), sizeof reply);
    Packet packet{reply, {}, {}};
    learn(id, reply, packet);
    if (clients.count(id) != 0) send(id, std::move(packet));
}

// What of an answer is this daemon's own business.
void GuestDaemon::Impl::learn(ConnectionId id, const proto::Message& reply, Packet& packet) {
    Client& client = clients.at(id);
    const auto closing = client.closing.extract(reply.header.request_id);
    const proto::Type type = proto::type_of(reply.header);
    if (type == proto::Type::kBye && client.leaving != 0) {
        const std::lock_guard lock(mutex);
        return loop->remove(forget_left(processes, client.leaving, reply));
    }
    if (reply.header.status != 0) return;
    if (type == proto::Type::kArenaClose && !closing.empty()) {
        const std::lock_guard lock(mutex);
        forget_arena(processes, client.session, closing.mapped());
    }
    if (type == proto::Type::kHello && !client.is_greeted) {
        auto pidfd = client.socket.peer_pidfd();
        const std::uint64_t session = reply.hello.session_id;
        const auto watched =
            pidfd.ok() ? watch(session, std::move(pidfd).value(), client.peer.pid, client.peer.uid)
                       : Result<void>(pidfd.error());
        if (!watched.ok()) {
            // One whose end could not be noticed would hold its memory for ever.
            to_owner().ended(session);
            return drop(id);
        }
        client.session = session;
        client.is_greeted = true;
        places->greeted(client.peer.uid);
        // Its arenas' descriptors, which it presents when it comes back.
        (void)client.socket.allow_descriptors(true);
        const std::lock_guard lock(mutex);
        known_sessions.unwatched.erase(session);
        processes.at(session).connection = id;
    }
    if (type == proto::Type::kArenaOpen) {
        packet.arena = ArenaId{reply.arena_open.arena_id};
        const std::lock_guard lock(mutex);
        const auto process = processes.find(client.session);
        if (process != processes.end()) {
            if (options.flushes) {
                process->second.ranges.insert(OpenRange{ArenaId{reply.arena_open.arena_id},
                                                        proto::offset_of(reply.arena_open),
                                                        reply.arena_open.bytes});
            }
        }
    }
}

Result<void> GuestDaemon::Impl::watch(std::uint64_t session, Fd pidfd, std::int32_t pid,
                                      std::uint32_t uid) {
    const std::lock_guard lock(mutex);
    GuestProcess& process = processes[session];
    loop->remove(process.watch);
    const auto watched =
        loop->add(pidfd.get(), EPOLLIN, [this, session](std::uint32_t) { process_ended(session); });
    if (!watched.ok()) {
        processes.erase(session);
        return watched.error();
    }
    process.pidfd = std::move(pidfd);
    process.watch = watched.value();
    process.pid = pid;
    process.uid = uid;
    return {};
}

void GuestDaemon::Impl::process_ended(std::uint64_t session) {
    ConnectionId connection = 0;
    Ranges ranges;
    {
        const std::lock_guard lock(mutex);
        const auto found = processes.find(session);
        if (found == processes.end()) return;
        connection = found->second.connection;
        loop->remove(found->second.watch);
        found->second.watch = 0;
        found->second.has_ended = true;
        ranges = found->second.ranges;
    }
    drop(connection);
    flush_ended(session, std::move(ranges));
}

// The others hear of the death at once, and have the memory when what the process wrote has left
// this host's caches.
void GuestDaemon::Impl::flush_ended(std::uint64_t session, Ranges ranges) {
    if (flusher == nullptr) return flushed_ended(session, {});
    Bytes bytes = 0;
    for (const OpenRange& range : ranges) bytes += range.bytes;
    fabricshm::log(LogLevel::kDebug, "session %llu has ended: %s leave this host's caches",
                   static_cast<unsigned long long>(session),
                   fabricshm::format_bytes(bytes).c_str());
    to_owner().died(session);
    // Also without ranges: those of a goodbye may be on their way.
    flusher->flush(std::move(ranges), [this, session](const Result<void>& flushed) {
        (void)loop->post([this, session, flushed] { flushed_ended(session, flushed); });
    });
}

void GuestDaemon::Impl::flushed_ended(std::uint64_t session, const Result<void>& flushed) {
    if (link == nullptr) return;  // the next daemon asks for it again
    if (!flushed.ok()) {
        // Of no use to the others, but true: its memory stays given up.
        fabricshm::log(LogLevel::kError, "what session %llu wrote may be in this host's caches: %s",
                       static_cast<unsigned long long>(session), describe(flushed.error()).c_str());
        return;
    }
    {
        const std::lock_guard lock(mutex);
        // While there is no call the next welcome asks for it again.
        processes.erase(session);
    }
    to_owner().ended(session);
}

void GuestDaemon::Impl::came_up(const std::vector<KnownSession>& sessions) {
    fabricshm::log(LogLevel::kInfo, "the pool is that of %s: %zu sessions of before",
                   options.owner.c_str(), sessions.size());
    if (link == nullptr) return;
    is_up = true;
    {
        const std::lock_guard lock(mutex);
        known_sessions = {};  // until all of the list are noted
    }
    std::set<std::uint64_t> known;
    for (const KnownSession& entry : sessions) {
        known.insert(entry.session);
        if (!note_known(entry)) flush_ended(entry.session, ranges_of(entry.session));
    }
    const std::lock_guard lock(mutex);
    trouble.clear();
    known_sessions.has_heard = true;
    for (auto process = processes.begin(); process != processes.end();) {
        const bool is_known = known.count(process->first) != 0;
        if (!is_known) loop->remove(process->second.watch);
        process = is_known ? std::next(process) : processes.erase(process);
    }
}

// False when its process has ended.
bool GuestDaemon::Impl::note_known(const KnownSession& entry) {
    bool is_new = false;
    {
        const std::lock_guard lock(mutex);
        is_new = processes.count(entry.session) == 0;
        GuestProcess& process = processes[entry.session];
        process.pid = entry.pid;
        // Of a daemon before this one, too.
        if (options.flushes) process.ranges.insert(entry.ranges.begin(), entry.ranges.end());
    }
    if (!is_new) return true;
    // A process that has the number by chance keeps the memory until it ends, too.
    auto pidfd = fabricshm::open_pidfd(entry.pid);
    const auto watched = pidfd.ok() ? watch(entry.session, std::move(pidfd).value(), entry.pid, 0)
                                    : Result<void>(pidfd.error());
    if (watched.ok()) return true;
    const std::lock_guard lock(mutex);
    // Asked for again by the next welcome.
    if (watched.error().code != Errc::kNotFound) {
        fabricshm::log(LogLevel::kError, "session %llu can't be watched: %s",
                       static_cast<unsigned long long>(entry.session),
                       describe(watched.error()).c_str());
        processes.erase(entry.session);
        known_sessions.unwatched.insert(entry.session);
        return true;
    }
    processes[entry.session].has_ended = true;
    return false;
}

GuestDaemon::Impl::Ranges GuestDaemon::Impl::ranges_of(std::uint64_t session) const {
    const std::lock_guard lock(mutex);
    const auto found = processes.find(session);
    return found == processes.end() ? Ranges{} : found->second.ranges;
}

// Sessions come back when there is a call again.
void GuestDaemon::Impl::went_down(const std::string& why) {
    {
        const std::lock_guard lock(mutex);
        if (is_up || trouble != why) {
            fabricshm::log(LogLevel::kWarning, "%s (pool.owner %s)", why.c_str(),
                           options.owner.c_str());
        }
        trouble = why;
    }
    is_up = false;
    while (!clients.empty()) drop(clients.begin()->first);
}

Result<void> GuestDaemon::Impl::serve() {
    FABRIC_TRY(accepting, loop->add(listener->get(), EPOLLIN, [this](std::uint32_t) { accept(); }));
    TimePoint next_tick = started;
    while (!loop->stopping()) {
        FABRIC_TRY_VOID(loop->turn(std::min(next_tick, strangers->next_deadline())));
        const TimePoint now = Clock::now();
        strangers->close(now);
        if (now < next_tick) continue;
        next_tick = fabricshm::deadline_after(now, kTick);
        if (options.on_tick) options.on_tick();
    }
    return {};
}

GuestDaemon::GuestDaemon(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
GuestDaemon::~GuestDaemon() = default;

Result<std::unique_ptr<GuestDaemon>> GuestDaemon::start(GuestOptions options,
                                                        fabricshm::DaxDevices devices) {
    auto impl = std::make_unique<Impl>();
    impl->options = std::move(options);
    FABRIC_TRY(const fabricshm::DaxCatalogue catalogue, devices.first().load());
    const Bytes capacity = devices.space(catalogue.stripe) - devices.align();
    impl->pool = {std::move(devices), catalogue.stripes(), catalogue.uuid, capacity};
    FABRIC_TRY_VOID(impl->start());
    return std::unique_ptr<GuestDaemon>(new GuestDaemon(std::move(impl)));
}

Result<void> GuestDaemon::run() {
    FABRIC_TRY_VOID(impl_->start_link());
    auto served = impl_->serve();
    // First, so that no event comes to a loop that no thread turns. What was posted before would
    // find no link to speak to, but there are no clients any more.
    while (!impl_->clients.empty()) impl_->drop(impl_->clients.begin()->first);
    impl_->is_up = false;
    impl_->end_link();
    return served;
}

void GuestDaemon::stop() noexcept {
    impl_->loop->stop();
}

void GuestDaemon::drain(bool on) noexcept {
    impl_->is_draining = on;
}

void GuestDaemon::share_cluster(ClusterDesk cluster) {
    impl_->cluster = std::move(cluster);
}

Result<void> GuestDaemon::end_sessions() {
    std::vector<Fd> ending;
    Impl::Ranges ranges;
    {
        const std::lock_guard lock(impl_->mutex);
        const auto view = impl_->cluster.view ? impl_->cluster.view() : nullptr;
        auto& ended = impl_->ended_incarnation;
        if (view != nullptr) ended = std::max(ended, view->incarnation);
        ending = kill_all(impl_->processes, ranges);
        if (impl_->link) impl_->link->hang_up();
    }
    const TimePoint deadline = fabricshm::deadline_after(Clock::now(), kEndWithin);
    for (const Fd& pidfd : ending) {
        FABRIC_TRY_VOID(fabricshm::wait_ready(pidfd.get(), POLLIN, deadline, "end session"));
    }
    // What they stored must not come out of this host's caches when the memory is another's.
    // With those of processes that ended before, whose lines are on their way out.
    if (impl_->flusher) FABRIC_TRY_VOID(impl_->flusher->flush_and_wait(std::move(ranges)));
    const std::lock_guard lock(impl_->mutex);
    return impl_->known_sessions.check_all();
}

bool GuestDaemon::is_empty() const {
    const std::lock_guard lock(impl_->mutex);
    return impl_->known_sessions.check_all().ok() && impl_->processes.empty();
}

Snapshot GuestDaemon::snapshot() const {
    Snapshot all;
    all.draining = impl_->is_draining;
    all.uptime_ms = (Clock::now() - impl_->started) / std::chrono::milliseconds(1);
    all.pool.backend = "dax";
    all.pool.description = "the pool of " + impl_->options.owner + " on " +
                           impl_->pool.devices.names() + ", as its guest";
    all.pool.capacity_bytes = impl_->pool.capacity;
    all.pool.used_bytes = impl_->used;
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->trouble.empty()) {
        all.alarms.push_back(impl_->trouble + " (pool.owner " + impl_->options.owner + ")");
    }
    add_to(all, impl_->processes);
    return all;
}

}  // namespace fabricd
