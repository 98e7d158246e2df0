#include "fabricd/peer/guest_link.hpp"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "fabricd/peer/peer_server.hpp"
#include "libfabricshm/machine/dax_device.hpp"
#include "peer.grpc.pb.h"

namespace fabricd {

using fabricshm::Duration;
using fabricshm::Result;

namespace {

using OwnerStream = grpc::ClientReaderWriter<peer::v1::GuestFrame, peer::v1::OwnerFrame>;

constexpr int kMaxBackoffMs = 1000;
constexpr Duration kCallAgain = std::chrono::milliseconds(100);  // doubled while that fails
constexpr Duration kCallAtLeastEach = std::chrono::seconds(2);
constexpr auto kConnectWithin = std::chrono::seconds(2);

grpc::ChannelArguments channel_arguments() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPeerPingMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPeerPingMs);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxBackoffMs);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kMaxBackoffMs / 10);
    return arguments;
}

std::vector<KnownSession> sessions_of(const peer::v1::Welcome& welcome) {
    std::vector<KnownSession> sessions;
    for (const auto& known : welcome.sessions()) {
        sessions.push_back({known.session(), known.pid(), {}});
        for (const auto& range : known.ranges()) {
            sessions.back().ranges.push_back(
                {ArenaId{range.arena()}, range.offset(), range.bytes()});
        }
    }
    return sessions;
}

}  // namespace

struct GuestLink::Impl {
    std::shared_ptr<grpc::Channel> channel;
    bool is_tls = false;
    GuestEvents events;

    std::mutex mutex;  // of what follows
    std::condition_variable changed;
    std::deque<peer::v1::GuestFrame> frames;  // to be written by the call that there is
    grpc::ClientContext* context = nullptr;   // of that call
    bool is_up = false;
    bool is_stopping = false;

    std::thread thread;
    bool was_up = false;  // in the last call; the thread's own

    void run();
    std::string call(const GuestName& name);
    std::string why_not() const;
    bool prove(OwnerStream& stream, const peer::v1::OwnerFrame& heard);
    void write(OwnerStream& stream);
    void enqueue(peer::v1::GuestFrame frame);
};

void GuestLink::Impl::run() {
    Duration pause = kCallAgain;
    for (;;) {
        GuestName name;
        if (events.may_call(name)) {
            was_up = false;
            events.down(call(name));
            pause = was_up ? kCallAgain : std::min(2 * pause, kCallAtLeastEach);
        }
        std::unique_lock lock(mutex);
        if (changed.wait_for(lock, pause, [this] { return is_stopping; })) return;
    }
}

// Until it ends; why it did.
std::string GuestLink::Impl::call(const GuestName& name) {
    // Not WaitForReady: a call waits for no longer than this.
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + kConnectWithin)) {
        // An owner that refuses a certificate ends the connection without a word.
        return (is_tls ? "the owner of the pool does not answer, or refuses the certificate"
                       : "the owner of the pool does not answer") +
               why_not();
    }
    grpc::ClientContext own;
    {
        const std::lock_guard lock(mutex);
        if (is_stopping) return "stopping";
        context = &own;
        frames.clear();
    }
    const auto stub = peer::v1::Peer::NewStub(channel);
    const auto stream = stub->Relay(&own);
    peer::v1::GuestFrame greeting;
    greeting.mutable_greeting()->set_version(kPeerVersion);
    greeting.mutable_greeting()->set_host(name.host);
    greeting.mutable_greeting()->set_boot(name.boot);
    greeting.mutable_greeting()->set_incarnation(name.incarnation);
    greeting.mutable_greeting()->set_machine(name.machine);
    greeting.mutable_greeting()->set_pid_namespace(name.pid_namespace);
    greeting.mutable_greeting()->set_instance(name.instance);
    greeting.mutable_greeting()->set_pool(name.pool.data(), name.pool.size());
    peer::v1::OwnerFrame heard;
    std::thread writer;
    if (stream->Write(greeting) && stream->Read(&heard) && prove(*stream, heard) &&
        stream->Read(&heard) && heard.has_welcome()) {
        const std::vector<KnownSession> sessions = sessions_of(heard.welcome());
        {
            const std::lock_guard lock(mutex);
            is_up = true;
        }
        was_up = true;
        writer = std::thread([&] { write(*stream); });
        events.up(sessions);
        while (stream->Read(&heard)) {
            if (heard.has_packet()) {
                events.packet(heard.packet().connection(),
                              std::move(*heard.mutable_packet()->mutable_data()));
            } else if (heard.has_closed()) {
                events.closed(heard.closed().connection());
            } else if (heard.has_usage()) {
                events.usage(heard.usage().used_bytes());
            }
        }
    }
    {
        const std::lock_guard lock(mutex);
        is_up = false;
        context = nullptr;
    }
    changed.notify_all();
    if (writer.joinable()) writer.join();
    const grpc::Status status = stream->Finish();
    return status.error_message().empty() ? "the owner of the pool has gone"
                                          : "the owner of the pool: " + status.error_message();
}

bool GuestLink::Impl::prove(OwnerStream& stream, const peer::v1::OwnerFrame& heard) {
    if (!heard.has_challenge() || heard.challenge().mark() >= fabricshm::DaxDevice::kMarks) {
        return false;
    }
    const auto value = events.read_mark(heard.challenge().mark());
    if (!value.ok()) return false;
    peer::v1::GuestFrame proof;
    proof.mutable_proof()->set_value(*value);
    return stream.Write(proof);
}

// ": " and what stands in the way, a certificate perhaps; "" when nothing is known.
std::string GuestLink::Impl::why_not() const {
    grpc::ClientContext brief;
    brief.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    const auto stub = peer::v1::Peer::NewStub(channel);
    const grpc::Status status = stub->Relay(&brief)->Finish();
    const bool is_known = status.error_code() == grpc::StatusCode::UNAVAILABLE;
    return is_known && !status.error_message().empty() ? ": " + status.error_message() : "";
}

void GuestLink::Impl::write(OwnerStream& stream) {
    std::unique_lock lock(mutex);
    for (;;) {
        changed.wait(lock, [this] { return !is_up || !frames.empty(); });
        if (!is_up) return;
        const peer::v1::GuestFrame frame = std::move(frames.front());
        frames.pop_front();
        lock.unlock();
        const bool is_written = stream.Write(frame);
        lock.lock();
        if (!is_written) return;  // the reader sees the end, too
    }
}

void GuestLink::Impl::enqueue(peer::v1::GuestFrame frame) {
    {
        const std::lock_guard lock(mutex);
        if (!is_up) return;
        frames.push_back(std::move(frame));
    }
    changed.notify_all();
}

GuestLink::GuestLink(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

Result<std::unique_ptr<GuestLink>> GuestLink::start(const std::string& address,
                                                    const PeerFiles& files, GuestEvents events) {
    FABRIC_TRY(const auto credentials, peer_channel_credentials(address, files));
    auto impl = std::make_unique<Impl>();
    take_over_grpc_log();
    impl->is_tls = !is_unix_address(address);
    impl->channel = grpc::CreateCustomChannel(address, credentials, channel_arguments());
    impl->events = std::move(events);
    impl->thread = std::thread([link = impl.get()] { link->run(); });
    return std::unique_ptr<GuestLink>(new GuestLink(std::move(impl)));
}

GuestLink::~GuestLink() {
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->is_stopping = true;
        if (impl_->context != nullptr) impl_->context->TryCancel();
    }
    impl_->changed.notify_all();
    impl_->thread.join();
}

void GuestLink::hang_up() noexcept {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->context != nullptr) impl_->context->TryCancel();
}

void GuestLink::opened(std::uint64_t connection, std::int32_t pid, std::uint32_t uid,
                       std::uint32_t gid) {
    peer::v1::GuestFrame frame;
    frame.mutable_opened()->set_connection(connection);
    frame.mutable_opened()->set_pid(pid);
    frame.mutable_opened()->set_uid(uid);
    frame.mutable_opened()->set_gid(gid);
    impl_->enqueue(std::move(frame));
}

void GuestLink::packet(std::uint64_t connection, std::string bytes) {
    peer::v1::GuestFrame frame;
    frame.mutable_packet()->set_connection(connection);
    frame.mutable_packet()->set_data(std::move(bytes));
    impl_->enqueue(std::move(frame));
}

void GuestLink::closed(std::uint64_t connection) {
    peer::v1::GuestFrame frame;
    frame.mutable_closed()->set_connection(connection);
    impl_->enqueue(std::move(frame));
}

void GuestLink::ended(std::uint64_t session) {
    peer::v1::GuestFrame frame;
    frame.mutable_ended()->set_session(session);
    impl_->enqueue(std::move(frame));
}

void GuestLink::died(std::uint64_t session) {
    peer::v1::GuestFrame frame;
    frame.mutable_died()->set_session(session);
    impl_->enqueue(std::move(frame));
}

void GuestLink::presented_others(std::uint64_t session, std::uint64_t arena) {
    peer::v1::GuestFrame frame;
    frame.mutable_strange()->set_session(session);
    frame.mutable_strange()->set_arena(arena);
    impl_->enqueue(std::move(frame));
}

}  // namespace fabricd
