#include "fabricd/peer/peer_server.hpp"

#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "fabricd/net/host_record.hpp"
#include "fabricd/peer/peer_certificate.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/proto/messages.hpp"
#include "peer.grpc.pb.h"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::error_from_errno;
using fabricshm::explain;
using fabricshm::Fd;
using fabricshm::LogLevel;
using fabricshm::Result;
using fabricshm::UnixSocket;

namespace {

// Two threads for each guest's call.
constexpr int kThreadsMax = 1024;
constexpr int kBacklog = 64;
// For the control thread to take a packet; a client that lets its replies lie is not read by it.
constexpr auto kTakeWithin = std::chrono::seconds(1);
constexpr int kQuietMs = 1000;       // then the guest hears what is used of the pool
constexpr int kPacketsPerTurn = 64;  // of one connection, before the others have theirs

using PacketBytes = std::array<std::byte, sizeof(fabricshm::proto::Message)>;
using GuestStream = grpc::ServerReaderWriter<peer::v1::OwnerFrame, peer::v1::GuestFrame>;

/// One guest's call. Its thread reads; another one writes what the daemon says.
class GuestCall {
  public:
    GuestCall(GuestStream& stream, const PeerHooks& hooks, Peer host)
        : stream_(stream), hooks_(hooks), host_(std::move(host)) {}

    Result<void> run(const std::vector<RemoteSession>& sessions);

  private:
    Result<void> open(const peer::v1::Opened& opened);
    void forward(const peer::v1::Packet& packet);
    void close(std::uint64_t connection, bool says_so);
    std::shared_ptr<UnixSocket> find(std::uint64_t connection);
    void write_until_stopped();
    bool write_packets(std::uint64_t connection);
    bool write_usage();

    GuestStream& stream_;
    const PeerHooks& hooks_;
    const Peer host_;
    Fd epoll_;
    Fd stop_;  // an eventfd, watched under number 0
    std::mutex mutex_;
    std::map<std::uint64_t, std::shared_ptr<UnixSocket>> connections_;
    std::mutex writing_;                            // the stream takes one writer at a time
    fabricshm::Bytes said_ = ~fabricshm::Bytes{0};  // the last usage; the writing thread's own
};

Result<void> GuestCall::run(const std::vector<RemoteSession>& sessions) {
    epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    stop_ = Fd(::eventfd(0, EFD_CLOEXEC));
    epoll_event event{EPOLLIN, {.u64 = 0}};
    if (!epoll_ || !stop_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stop_.get(), &event) != 0) {
        return error_from_errno(errno, "serve guest");
    }
    peer::v1::OwnerFrame frame;
    frame.mutable_welcome();
    for (const RemoteSession& known : sessions) {
        auto* session = frame.mutable_welcome()->add_sessions();
        session->set_session(raw(known.id));
        session->set_pid(known.peer.pid);
        for (const OpenRange& range : known.ranges) {
            auto* added = session->add_ranges();
            added->set_arena(raw(range.arena));
            added->set_offset(range.offset);
            added->set_bytes(range.bytes);
        }
    }
    if (!stream_.Write(frame)) return Error{Errc::kClosed, 0, "serve guest"};
    std::thread writer([this] { write_until_stopped(); });
    Result<void> outcome;
    peer::v1::GuestFrame heard;
    while (outcome.ok() && stream_.Read(&heard)) {
        switch (heard.what_case()) {
            case peer::v1::GuestFrame::kOpened:
                outcome = open(heard.opened());
                break;
            case peer::v1::GuestFrame::kPacket:
                forward(heard.packet());
                break;
            case peer::v1::GuestFrame::kClosed:
                close(heard.closed().connection(), false);
                break;
            case peer::v1::GuestFrame::kEnded:
                hooks_.ended(host_, heard.ended().session());
                break;
            case peer::v1::GuestFrame::kDied:
                hooks_.died(host_, heard.died().session());
                break;
            case peer::v1::GuestFrame::kStrange:
                hooks_.presented_others(host_, heard.strange().session(), heard.strange().arena());
                break;
            default:
                outcome = Error{Errc::kCorrupt, 0, "serve guest"};
        }
    }
    const std::uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof one);
    writer.join();
    return outcome;
}

Result<void> GuestCall::open(const peer::v1::Opened& opened) {
    const std::uint64_t number = opened.connection();
    if (number == 0 || find(number) != nullptr) return Error{Errc::kCorrupt, 0, "serve guest"};
    auto made = UnixSocket::pair();
    if (!made.ok()) {
        fabricshm::log(LogLevel::kError, "%s", describe(made.error()).c_str());
        close(number, true);
        return {};
    }
    auto& [ours, daemons] = made.value();
    const auto socket = std::make_shared<UnixSocket>(std::move(ours));
    {
        const std::lock_guard lock(mutex_);
        connections_[number] = socket;
    }
    Peer peer = host_;
    peer.pid = opened.pid();
    peer.uid = opened.uid();
    peer.gid = opened.gid();
    hooks_.take(std::move(daemons), peer);
    epoll_event event{EPOLLIN, {.u64 = number}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket->get(), &event) != 0) close(number, true);
    return {};
}

std::shared_ptr<UnixSocket> GuestCall::find(std::uint64_t connection) {
    const std::lock_guard lock(mutex_);
    const auto found = connections_.find(connection);
    return found == connections_.end() ? nullptr : found->second;
}

// One client that is not served ends alone: the others come through the same call.
void GuestCall::forward(const peer::v1::Packet& packet) {
    const auto socket = find(packet.connection());
    if (socket == nullptr) return;  // the daemon has just closed it
    const auto sent = socket->send(std::as_bytes(std::span(packet.data())), {},
                                   fabricshm::Clock::now() + kTakeWithin);
    if (!sent.ok()) close(packet.connection(), true);
}

void GuestCall::close(std::uint64_t connection, bool says_so) {
    {
        const std::lock_guard lock(mutex_);
        const auto found = connections_.find(connection);
        if (found != connections_.end()) {
            // Readable at the other end, which is the daemon's; closed when the writer lets go of
            // it, too.
            found->second->shut_down();
            (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second->get(), nullptr);
            connections_.erase(found);
        }
    }
    if (!says_so) return;
    peer::v1::OwnerFrame frame;
    frame.mutable_closed()->set_connection(connection);
    const std::lock_guard lock(writing_);
    (void)stream_.Write(frame);
}

void GuestCall::write_until_stopped() {
    for (;;) {
        std::array<epoll_event, 64> events;
        const int count =
            ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), kQuietMs);
        if (count < 0 && errno != EINTR) return;
        if (count == 0 && !write_usage()) return;
        for (int i = 0; i < count; ++i) {
            const std::uint64_t number = events[static_cast<std::size_t>(i)].data.u64;
            if (number == 0 || !write_packets(number)) return;
        }
    }
}

// For what people see at the guest. False when the call is over.
bool GuestCall::write_usage() {
    const fabricshm::Bytes used = hooks_.used();
    if (used == said_) return true;
    said_ = used;
    peer::v1::OwnerFrame frame;
    frame.mutable_usage()->set_used_bytes(used);
    const std::lock_guard lock(writing_);
    return stream_.Write(frame);
}

// False when the call is over.
bool GuestCall::write_packets(std::uint64_t connection) {
    const auto socket = find(connection);
    if (socket == nullptr) return true;
    for (int i = 0; i < kPacketsPerTurn; ++i) {
        PacketBytes bytes;
        // Descriptors of the device or of nothing that the guest could use.
        std::vector<Fd> descriptors;
        const auto received = socket->receive_all(bytes, descriptors, fabricshm::kNoWait);
        if (!received.ok()) {
            if (received.error().code != Errc::kTimeout) close(connection, true);
            return true;
        }
        peer::v1::OwnerFrame frame;
        frame.mutable_packet()->set_connection(connection);
        frame.mutable_packet()->set_data(bytes.data(), *received);
        const std::lock_guard lock(writing_);
        if (!stream_.Write(frame)) return false;
    }
    return true;
}

// The name in the certificate has to be the host's: another host of the cluster must not speak for
// it.
bool is_authenticated(const grpc::ServerContext& context, const std::string& host) {
    const auto auth = context.auth_context();
    if (auth == nullptr || !auth->IsPeerAuthenticated()) return false;
    const auto values = [&auth](const char* property, std::vector<std::string>& into) {
        for (const grpc::string_ref& name : auth->FindPropertyValues(property)) {
            into.emplace_back(name.data(), name.size());
        }
    };
    CertificateNames names;
    names.has_alternatives = !auth->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME).empty();
    values(GRPC_PEER_DNS_PROPERTY_NAME, names.hosts);
    values(GRPC_PEER_IP_PROPERTY_NAME, names.hosts);
    values(GRPC_X509_CN_PROPERTY_NAME, names.common_names);
    return has_name(names, host);
}

class PeerService final : public peer::v1::Peer::Service {
  public:
    PeerService(const PeerServerOptions& options, PeerHooks hooks)
        : options_(options), hooks_(std::move(hooks)) {}

    grpc::Status Relay(grpc::ServerContext* context, GuestStream* stream) override;

    /// Makes all calls return. Idempotent.
    void stop() {
        const std::lock_guard lock(mutex_);
        is_stopping_ = true;
        for (const auto& [host, call] : calls_) call.context->TryCancel();
    }

  private:
    std::string refusal_of(const grpc::ServerContext& context,
                           const peer::v1::Greeting& greeting) const;
    bool is_news(const std::string& refusal);
    std::string enter(const peer::v1::Greeting& greeting, grpc::ServerContext* context);
    grpc::Status refuse(const grpc::ServerContext& context, const std::string& refusal);
    void leave(const std::string& host, grpc::ServerContext* context);
    std::string check_device(GuestStream& stream);

    const PeerServerOptions& options_;
    const PeerHooks hooks_;
    std::mutex mutex_;
    struct Call {
        grpc::ServerContext* context = nullptr;
        std::uint64_t instance = 0;
    };
    std::map<std::string, Call> calls_;  // by the name of the host
    bool is_stopping_ = false;
    std::string refusal_;  // the last that was logged, and when
    fabricshm::TimePoint refused_at_{};
};

std::string PeerService::refusal_of(const grpc::ServerContext& context,
                                    const peer::v1::Greeting& greeting) const {
    if (greeting.version() != kPeerVersion) return "another version of fabricd";
    if (!is_host_name(greeting.host())) return "its name is none of a host";
    if (greeting.host() == options_.host) {
        return "a guest has the name of the pool's owner, " + options_.host +
               " (cluster.host_name)";
    }
    const bool same_pool =
        greeting.pool().size() == options_.pool.size() &&
        std::memcmp(greeting.pool().data(), options_.pool.data(), options_.pool.size()) == 0;
    if (!same_pool) return "its device is of another pool (pool.dax_device)";
    if (!is_unix_address(options_.address) && !is_authenticated(context, greeting.host())) {
        return "its certificate has no name " + greeting.host() + " (cluster.tls_cert)";
    }
    return "";
}

// It comes again every two seconds.
bool PeerService::is_news(const std::string& refusal) {
    const auto now = fabricshm::Clock::now();
    const std::lock_guard lock(mutex_);
    if (refusal == refusal_ && now < refused_at_ + std::chrono::minutes(1)) return false;
    refusal_ = refusal;
    refused_at_ = now;
    return true;
}

// A call that hangs since its guest was cut off gives way to the one that the same daemon makes
// now. Another daemon of that name waits until it has ended: pings end it within seconds where
// there is no guest any more. "", or why not.
std::string PeerService::enter(const peer::v1::Greeting& greeting, grpc::ServerContext* context) {
    const std::lock_guard lock(mutex_);
    if (is_stopping_) return "stopping";
    const auto before = calls_.find(greeting.host());
    if (before != calls_.end()) {
        if (before->second.instance != greeting.instance()) {
            return "a guest of the name " + greeting.host() +
                   " is connected already (cluster.host_name)";
        }
        before->second.context->TryCancel();
    }
    calls_[greeting.host()] = {context, greeting.instance()};
    return "";
}

grpc::Status PeerService::refuse(const grpc::ServerContext& context, const std::string& refusal) {
    if (is_news(refusal)) {
        fabricshm::log(LogLevel::kWarning, "a guest at %s is refused: %s", context.peer().c_str(),
                       refusal.c_str());
    }
    return {grpc::StatusCode::FAILED_PRECONDITION, refusal};
}

void PeerService::leave(const std::string& host, grpc::ServerContext* context) {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(host);
    if (found != calls_.end() && found->second.context == context) calls_.erase(found);
}

// Memory that shows the same catalogue may be a copy of it, as on a machine that was cloned with
// its devices: ranks on it would wait for each other in vain. "", or why not.
std::string PeerService::check_device(GuestStream& stream) {
    const auto written = hooks_.write_mark();
    if (!written.ok()) return explanation_of(written.error());
    peer::v1::OwnerFrame challenge;
    challenge.mutable_challenge()->set_mark(written->mark);
    peer::v1::GuestFrame answer;
    if (!stream.Write(challenge) || !stream.Read(&answer) || !answer.has_proof()) {
        return "it can't read the device (pool.dax_device)";
    }
    if (answer.proof().value() == written->value) return "";
    return "its device is a copy of the pool's, and not the same memory (pool.dax_device)";
}

grpc::Status PeerService::Relay(grpc::ServerContext* context, GuestStream* stream) {
    peer::v1::GuestFrame first;
    if (!stream->Read(&first) || !first.has_greeting()) {
        return {grpc::StatusCode::INVALID_ARGUMENT, "a greeting comes first"};
    }
    const peer::v1::Greeting& greeting = first.greeting();
    if (const std::string bad = refusal_of(*context, greeting); !bad.empty()) {
        return refuse(*context, bad);
    }
    if (const std::string bad = enter(greeting, context); !bad.empty())
        return refuse(*context, bad);
    if (const std::string bad = check_device(*stream); !bad.empty()) {
        leave(greeting.host(), context);
        return refuse(*context, bad);
    }
    Peer host;
    host.host = greeting.host();
    host.boot = greeting.boot();
    host.incarnation = greeting.incarnation();
    host.machine = greeting.machine();
    host.pid_namespace = greeting.pid_namespace();
    const auto sessions = hooks_.greet(host);
    if (!sessions.ok()) {
        leave(host.host, context);
        return refuse(*context, explanation_of(sessions.error()));
    }
    fabricshm::log(LogLevel::kInfo, "audit: host %s shares the pool", greeting.host().c_str());
    const auto served = GuestCall(*stream, hooks_, host).run(*sessions);
    leave(host.host, context);
    fabricshm::log(LogLevel::kWarning, "the daemon of host %s is gone: its sessions may come back",
                   host.host.c_str());
    return served.ok() ? grpc::Status::OK
                       : grpc::Status{grpc::StatusCode::INVALID_ARGUMENT, describe(served.error())};
}

// The mode before the name: no moment in which others could connect.
Result<Fd> listen_at(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) {
        return explain({Errc::kInvalid, 0, "listen for guests"}, "%s is too long", path.c_str());
    }
    std::memcpy(address.sun_path, path.c_str(), path.size());
    const auto* name = reinterpret_cast<const sockaddr*>(&address);
    Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket || ::fchmod(socket.get(), 0600) != 0) {
        return error_from_errno(errno, "listen for guests");
    }
    ::unlink(path.c_str());  // of a daemon before: the lock of the device says that it is gone
    if (::bind(socket.get(), name, sizeof address) != 0 || ::listen(socket.get(), kBacklog) != 0) {
        return error_from_errno(errno, "listen for guests");
    }
    return socket;
}

}  // namespace

struct PeerServer::Impl {
    Impl(PeerServerOptions wanted, PeerHooks hooks)
        : options(std::move(wanted)), service(options, std::move(hooks)) {}

    PeerServerOptions options;
    PeerService service;
    std::unique_ptr<grpc::Server> server;
    Fd listener;  // of a unix address
    Fd stop;      // an eventfd
    std::thread accepting;

    Result<void> start();
    void accept_until_stopped();
};

Result<void> PeerServer::Impl::start() {
    take_over_grpc_log();
    grpc::ServerBuilder builder;
    grpc::ResourceQuota quota("peers");
    quota.SetMaxThreads(kThreadsMax);
    builder.SetResourceQuota(quota);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPeerPingMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPeerPingMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);  // guests ping as often
    builder.RegisterService(&service);
    const bool is_unix = is_unix_address(options.address);
    int port = 0;
    if (is_unix) {
        FABRIC_TRY(listener, listen_at(options.address.substr(5)));
        stop = Fd(::eventfd(0, EFD_CLOEXEC));
    } else {
        FABRIC_TRY(const auto credentials, peer_server_credentials(options.files));
        builder.AddListeningPort(options.address, credentials, &port);
    }
    server = builder.BuildAndStart();
    if (server == nullptr || (!is_unix && port == 0)) {
        return explain({Errc::kBusy, 0, "listen for guests"}, "can't listen at %s",
                       options.address.c_str());
    }
    if (is_unix) accepting = std::thread([this] { accept_until_stopped(); });
    return {};
}

void PeerServer::Impl::accept_until_stopped() {
    for (;;) {
        pollfd waits[] = {{stop.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
        const int ready = ::poll(waits, 2, -1);
        if ((ready < 0 && errno != EINTR) || waits[0].revents != 0) return;
        Fd guest(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (guest) grpc::AddInsecureChannelFromFd(server.get(), guest.release());
    }
}

PeerServer::PeerServer(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

Result<std::unique_ptr<PeerServer>> PeerServer::start(PeerServerOptions options, PeerHooks hooks) {
    auto impl = std::make_unique<Impl>(std::move(options), std::move(hooks));
    FABRIC_TRY_VOID(impl->start());
    return std::unique_ptr<PeerServer>(new PeerServer(std::move(impl)));
}

PeerServer::~PeerServer() {
    impl_->service.stop();
    if (impl_->accepting.joinable()) {
        const std::uint64_t one = 1;
        (void)!::write(impl_->stop.get(), &one, sizeof one);
        impl_->accepting.join();
        ::unlink(impl_->options.address.substr(5).c_str());
    }
    impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
}

}  // namespace fabricd
