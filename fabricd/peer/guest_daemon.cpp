#include "fabricd/peer/guest_daemon.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "fabricd/peer/guest_link.hpp"
#include "fabricd/pool/books.hpp"
#include "fabricd/server/admission.hpp"
#include "fabricd/server/connection_places.hpp"
#include "fabricd/server/descriptor_plan.hpp"
#include "fabricd/server/event_loop.hpp"
#include "fabricd/server/hosts_page.hpp"
#include "fabricd/server/listener.hpp"
#include "fabricd/server/outbox.hpp"
#include "fabricd/server/presented_file.hpp"
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

    struct Range {
        std::uint64_t offset = 0;
        Bytes bytes = 0;
        auto operator<=>(const Range&) const = default;
    };

    struct Client {
        UnixSocket socket;
        Peer peer;
        EventLoop::WatchId watch = 0;
        std::uint64_t session = 0;  // 0: no answer to its hello yet
        Outbox outbox;
        bool is_greeted = false;
    };
    /// Of a session; outlives its connections, as at any daemon.
    struct Process {
        Fd pidfd;
        EventLoop::WatchId watch = 0;
        std::int32_t pid = 0;
        std::uint32_t uid = 0;
        ConnectionId connection = 0;
        std::set<Range> ranges;  // of the pool, that it may have written
    };

    GuestOptions options;
    fabricshm::DaxDevices devices;
    fabricshm::Stripes stripes;
    std::array<std::uint8_t, 16> pool{};
    Bytes capacity = 0;
    fabricshm::HostIdentity identity;
    std::uint64_t instance = 0;
    std::function<std::shared_ptr<const ClusterView>()> hosts;

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
    TimePoint next_tick = Clock::now();

    mutable std::mutex mutex;  // of what follows; written by the control thread alone
    std::shared_ptr<GuestLink> link;
    std::map<std::uint64_t, Process> processes;
    std::string trouble = "the owner of the pool has not answered yet";
    std::uint64_t ended_incarnation = 0;  // whose sessions were ended: none begins under it

    ~Impl() {
        end_link();
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
    void went_down(const std::string& why);
    Result<void> watch(std::uint64_t session, Fd pidfd, std::int32_t pid, std::uint32_t uid);
    void process_ended(std::uint64_t session);
    void forget_ranges(std::uint64_t session);
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
    return {};
}

Result<void> GuestDaemon::Impl::start_link() {
    const auto post = [this](std::function<void()> task) { (void)loop->post(std::move(task)); };
    GuestEvents events;
    events.may_call = [this](GuestName& name) { return may_call(name); };
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
    name.pool = pool;
    const auto view = hosts ? hosts() : nullptr;
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
    // The library tries again, as while any daemon is away.
    if (!is_up || !places->has_room(peer.uid)) return closer.close(peer.uid, socket.release());
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
            client.socket, [this](ArenaId) { return devices.client_numbers(); }, -1);
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
        if (type == proto::Type::kHosts && proto::check_request(request, bytes).ok()) {
            send(id, {hosts_reply(request, hosts), {}, {}});
            return clients.count(id) != 0;
        }
        if (type == proto::Type::kArenaAdopt) {
            const bool is_ours = !descriptors.empty() &&
                                 is_harmless(descriptors[0], devices.first().client_number()) &&
                                 devices.first().is_same(descriptors[0]);
            if (!is_ours) return refuse(id, request, {Errc::kCorrupt, 0, "adopt arena"});
        }
    }
    // After a goodbye its memory is another's at once, as after its end.
    if (bytes == sizeof request && proto::type_of(request.header) == proto::Type::kBye) {
        forget_ranges(clients.at(id).session);
    }
    to_owner().packet(id, std::string(reinterpret_cast<const char*>(&request), bytes));
    return true;
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
                           [this](ArenaId) { return devices.client_numbers(); }, -1, {});
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
    if (reply.header.status != 0) return;
    Client& client = clients.at(id);
    const proto::Type type = proto::type_of(reply.header);
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
        processes.at(session).connection = id;
    }
    if (type == proto::Type::kArenaOpen) {
        packet.arena = ArenaId{reply.arena_open.arena_id};
        const std::lock_guard lock(mutex);
        const auto process = processes.find(client.session);
        if (process != processes.end()) {
            if (options.flushes) {
                process->second.ranges.insert(
                    {proto::offset_of(reply.arena_open), reply.arena_open.bytes});
            }
        }
    }
}

Result<void> GuestDaemon::Impl::watch(std::uint64_t session, Fd pidfd, std::int32_t pid,
                                      std::uint32_t uid) {
    const std::lock_guard lock(mutex);
    Process& process = processes[session];
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

// What the session's process wrote leaves this host's caches before its memory is another's.
void GuestDaemon::Impl::forget_ranges(std::uint64_t session) {
    std::set<Range> ranges;
    {
        const std::lock_guard lock(mutex);
        const auto found = processes.find(session);
        if (found != processes.end()) ranges = std::move(found->second.ranges);
        if (found != processes.end()) found->second.ranges.clear();
    }
    for (const Range& range : ranges) (void)devices.flush(stripes, range.offset, range.bytes);
}

void GuestDaemon::Impl::process_ended(std::uint64_t session) {
    forget_ranges(session);
    ConnectionId connection = 0;
    {
        const std::lock_guard lock(mutex);
        const auto found = processes.find(session);
        if (found == processes.end()) return;
        connection = found->second.connection;
        loop->remove(found->second.watch);
        // While there is no call the next welcome asks for it again.
        processes.erase(found);
    }
    to_owner().ended(session);
    drop(connection);
}

void GuestDaemon::Impl::came_up(const std::vector<KnownSession>& sessions) {
    fabricshm::log(LogLevel::kInfo, "the pool is that of %s: %zu sessions of before",
                   options.owner.c_str(), sessions.size());
    is_up = true;
    std::set<std::uint64_t> known;
    for (const KnownSession& entry : sessions) {
        known.insert(entry.session);
        {
            const std::lock_guard lock(mutex);
            trouble.clear();
            if (processes.count(entry.session) != 0) continue;
        }
        // Of a daemon before this one. A process that has the number by chance keeps the memory
        // until it ends, too.
        auto pidfd = fabricshm::open_pidfd(entry.pid);
        const bool is_watched =
            pidfd.ok() && watch(entry.session, std::move(pidfd).value(), entry.pid, 0).ok();
        if (!is_watched) to_owner().ended(entry.session);
    }
    const std::lock_guard lock(mutex);
    trouble.clear();
    for (auto process = processes.begin(); process != processes.end();) {
        const bool is_known = known.count(process->first) != 0;
        if (!is_known) loop->remove(process->second.watch);
        process = is_known ? std::next(process) : processes.erase(process);
    }
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
    impl->pool = catalogue.uuid;
    impl->stripes = catalogue.stripes();
    impl->capacity = devices.space(catalogue.stripe) - devices.align();
    impl->devices = std::move(devices);
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

void GuestDaemon::share_hosts(std::function<std::shared_ptr<const ClusterView>()> hosts) {
    impl_->hosts = std::move(hosts);
}

Result<void> GuestDaemon::end_sessions() {
    std::vector<Fd> ending;
    std::set<Impl::Range> ranges;
    {
        const std::lock_guard lock(impl_->mutex);
        const auto view = impl_->hosts ? impl_->hosts() : nullptr;
        if (view != nullptr) {
            impl_->ended_incarnation = std::max(impl_->ended_incarnation, view->incarnation);
        }
        for (const auto& [session, process] : impl_->processes) {
            (void)::syscall(SYS_pidfd_send_signal, process.pidfd.get(), SIGKILL, nullptr, 0);
            ending.emplace_back(::dup(process.pidfd.get()));
            ranges.insert(process.ranges.begin(), process.ranges.end());
        }
        if (impl_->link) impl_->link->hang_up();
    }
    const TimePoint deadline = fabricshm::deadline_after(Clock::now(), kEndWithin);
    for (const Fd& pidfd : ending) {
        FABRIC_TRY_VOID(fabricshm::wait_ready(pidfd.get(), POLLIN, deadline, "end session"));
    }
    // What they stored must not come out of this host's caches when the memory is another's.
    for (const Impl::Range& range : ranges) {
        FABRIC_TRY_VOID(impl_->devices.flush(impl_->stripes, range.offset, range.bytes));
    }
    return {};
}

Snapshot GuestDaemon::snapshot() const {
    Snapshot all;
    all.draining = impl_->is_draining;
    all.pool.backend = "dax";
    all.pool.description =
        "the pool of " + impl_->options.owner + " on " + impl_->devices.names() + ", as its guest";
    all.pool.capacity_bytes = impl_->capacity;
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->trouble.empty()) {
        all.alarms.push_back(impl_->trouble + " (pool.owner " + impl_->options.owner + ")");
    }
    for (const auto& [session, process] : impl_->processes) {
        SessionView view;
        view.id = session;
        view.pid = process.pid;
        view.uid = process.uid;
        view.connected = process.connection != 0;
        all.totals.sessions_connected += view.connected ? 1 : 0;
        all.sessions.push_back(std::move(view));
    }
    all.totals.sessions = all.sessions.size();
    return all;
}

}  // namespace fabricd
