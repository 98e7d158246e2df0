#include "fabricd/ctl/admin_client.hpp"

#include <google/protobuf/arena.h>
#include <grpcpp/create_channel.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "admin.grpc.pb.h"
#include "fabricd/config/runtime_dir.hpp"
#include "fabricd/server/admin_codec.hpp"
#include "fabricd/server/admin_server.hpp"
#include "fabricd/server/decision_codec.hpp"
#include "fabricd/server/host_codec.hpp"
#include "fabricd/server/vgpu_codec.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using namespace admin::v1;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;

namespace {

constexpr int kReplyBytesMax = 256 << 20;  // a million regions

// For the daemon's log. The user of the login and not only root, which many become by sudo.
std::string caller() {
    const char* login = std::getenv("SUDO_USER");
    const std::string by = login != nullptr ? std::string(", sudo by ") + login : "";
    return "uid " + std::to_string(::getuid()) + ", pid " + std::to_string(::getpid()) + by;
}

// In fabricctl only this file and the codecs know the generated messages: the commands get plain
// data.

// By unpack() of each message, in the codecs.
template <typename Messages, typename Views>
void unpack_all(const Messages& messages, Views& views) {
    views.reserve(static_cast<std::size_t>(messages.size()));
    for (const auto& message : messages) views.push_back(unpack(message));
}

StatusView unpack_status(const StatusReply& reply) {
    StatusView status{reply.version(),
                      reply.pid(),
                      reply.daemon_epoch(),
                      reply.uptime_ms(),
                      reply.draining(),
                      reply.sessions(),
                      reply.sessions_connected(),
                      reply.arenas(),
                      reply.regions(),
                      reply.groups(),
                      unpack(reply.pool()),
                      {reply.alarms().begin(), reply.alarms().end()}};
    unpack_all(reply.caches(), status.caches);
    return status;
}

Picture unpack_watch(const WatchReply& reply) {
    Picture picture;
    picture.status = unpack_status(reply.status());
    picture.pools = {picture.status.pool};
    unpack_all(reply.arenas(), picture.arenas);
    unpack_all(reply.regions(), picture.regions);
    unpack_all(reply.sessions(), picture.sessions);
    unpack_all(reply.groups(), picture.groups);
    unpack_all(reply.devices(), picture.devices);
    picture.telemetry = unpack(reply.telemetry());
    return picture;
}

std::vector<EventView> unpack_events(const EventsReply& reply) {
    std::vector<EventView> events;
    for (const auto& event : reply.events()) {
        events.push_back({event.number(), event.unix_ms(), event.level(), event.text()});
    }
    return events;
}

TraceBatch unpack_traced(const admin::v1::TracedSession& session) {
    TraceBatch batch{session.session_id(), session.pid(),      session.label(), {},
                     session.lost(),       session.senseless()};
    batch.records.resize(static_cast<std::size_t>(session.records_size()) / fabricshm::kTraceWords);
    // Words of the same host: the daemon's socket is a unix socket.
    std::memcpy(batch.records.data(), session.records().data(),
                batch.records.size() * sizeof(fabricshm::TraceRecord));
    return batch;
}

// Back to our own codes, as far as the caller prints another text for them. All others are
// kInternal and come with the daemon's words.
Errc code_of(const grpc::Status& status) {
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) return Errc::kDaemon;
    // A daemon that ends cancels the requests it has; nothing here ever does.
    if (status.error_code() == grpc::StatusCode::CANCELLED) return Errc::kDaemon;
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) return Errc::kNotFound;
    if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) return Errc::kInvalid;
    if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) return Errc::kNoMemory;
    return status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ? Errc::kTimeout
                                                                      : Errc::kInternal;
}

}  // namespace

// Keeps gRPC's headers out of admin_client.hpp, and so out of all commands.
struct AdminClient::Channel {
    std::unique_ptr<Admin::Stub> stub;
    std::chrono::milliseconds timeout{};
    std::string socket_path;
};

AdminClient::AdminClient(std::unique_ptr<Channel> channel) noexcept
    : channel_(std::move(channel)) {}
AdminClient::AdminClient(AdminClient&&) noexcept = default;
AdminClient::~AdminClient() = default;

std::string find_admin_socket(const std::string& named) {
    if (!named.empty()) return named;
    if (const char* given = std::getenv("FABRIC_ADMIN_SOCKET")) return given;
    const auto usual = admin_socket_candidates();
    for (const auto& path : usual) {
        const Errc found = probe_socket(path);
        if (found == Errc::kOk || found == Errc::kDenied) return path;
    }
    return usual.front();
}

// A daemon that stands still has its socket, and takes no request.
Error silence_of(const std::string& socket_path, std::chrono::milliseconds timeout,
                 const char* step) {
    return fabricshm::explain({Errc::kTimeout, 0, step},
                              "fabricd at %s does not answer within %s (--timeout): it is stopped, "
                              "hangs, or its host is overloaded",
                              socket_path.c_str(), fabricshm::format_duration(timeout).c_str());
}

Result<AdminClient> AdminClient::connect(const std::string& socket_path,
                                         std::chrono::milliseconds timeout) {
    // gRPC says UNAVAILABLE to all of these; people want to know which it is.
    const Errc found = probe_socket(socket_path);
    if (found == Errc::kInvalid) {
        return fabricshm::explain({found, 0, "connect"},
                                  "--socket: a path of %zu bytes is too long for a socket (107)",
                                  socket_path.size());
    }
    if (found == Errc::kDenied) return Error{found, 0, "connect"};
    if (found != Errc::kOk) return Error{Errc::kDaemon, 0, "connect"};
    grpc::ChannelArguments arguments;
    // A proxy of the environment has no business with a socket of this host.
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetMaxReceiveMessageSize(kReplyBytesMax);
    auto channel = std::make_unique<Channel>();
    channel->timeout = timeout;
    channel->socket_path = socket_path;
    const auto opened = grpc::CreateCustomChannel(grpc_address(socket_path),
                                                  grpc::InsecureChannelCredentials(), arguments);
    // gRPC by itself takes 20 s until it gives up a server that accepts and says nothing.
    if (!opened->WaitForConnected(std::chrono::system_clock::now() + timeout)) {
        const bool is_there = probe_socket(socket_path) == Errc::kOk;
        if (!is_there) return Error{Errc::kDaemon, 0, "connect"};
        return silence_of(socket_path, timeout, "connect");
    }
    channel->stub = Admin::NewStub(opened);
    return AdminClient(std::move(channel));
}

template <typename Method, typename Request, typename Reply>
Result<void> AdminClient::call(Method method, const Request& request, Reply& reply,
                               std::chrono::milliseconds longer) {
    // By the system's clock: that is what gRPC takes for a deadline.
    grpc::ClientContext context;
    const std::chrono::milliseconds timeout = channel_->timeout + longer;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    context.AddMetadata("fabric-caller", caller());
    const grpc::Status status = (channel_->stub.get()->*method)(&context, request, &reply);
    if (status.ok()) return {};
    last_text_ = status.error_message();
    if (code_of(status) == Errc::kTimeout) {
        last_text_.clear();  // gRPC's own
        return silence_of(channel_->socket_path, timeout, "ask fabricd");
    }
    return Error{code_of(status), 0, "ask fabricd"};
}

// A call per view, so that none fetches more than it shows.
Result<Picture> AdminClient::fetch(View view, std::uint64_t arena_id) {
    Picture picture;
    if (view == View::kStatus) {
        StatusReply reply;
        FABRIC_TRY_VOID(call(&Admin::Stub::Status, StatusRequest{}, reply));
        picture.status = unpack_status(reply);
    } else if (view == View::kPools) {
        PoolsReply reply;
        FABRIC_TRY_VOID(call(&Admin::Stub::Pools, PoolsRequest{}, reply));
        unpack_all(reply.pools(), picture.pools);
    } else if (view == View::kArenas) {
        ArenasReply reply;
        FABRIC_TRY_VOID(call(&Admin::Stub::Arenas, ArenasRequest{}, reply));
        unpack_all(reply.arenas(), picture.arenas);
    } else if (view == View::kRegions) {
        RegionsRequest request;
        request.set_arena_id(arena_id);
        RegionsReply reply;
        FABRIC_TRY_VOID(call(&Admin::Stub::Regions, request, reply));
        unpack_all(reply.regions(), picture.regions);
    } else if (view == View::kSessions) {
        SessionsReply reply;
        FABRIC_TRY_VOID(call(&Admin::Stub::Sessions, SessionsRequest{}, reply));
        unpack_all(reply.sessions(), picture.sessions);
    } else if (view == View::kGroups) {
        GroupsReply reply;
        FABRIC_TRY_VOID(call(&Admin::Stub::Groups, GroupsRequest{}, reply));
        unpack_all(reply.groups(), picture.groups);
    } else if (view == View::kShards) {
        ShardsReply reply;
        FABRIC_TRY_VOID(call(&Admin::Stub::Shards, ShardsRequest{}, reply));
        unpack_all(reply.shards(), picture.shards);
    } else if (view == View::kWaiting) {
        WaitingReply reply;
        FABRIC_TRY_VOID(call(&Admin::Stub::Waiting, WaitingRequest{}, reply));
        unpack_all(reply.waiting(), picture.waiting);
    } else if (view == View::kDevices) {
        DevicesReply reply;
        FABRIC_TRY_VOID(call(&Admin::Stub::Devices, DevicesRequest{}, reply));
        unpack_all(reply.devices(), picture.devices);
    } else {
        // Sampled telemetry comes with a watch only: its first picture is the answer.
        const auto deadline = std::chrono::system_clock::now() + channel_->timeout;
        const auto take_first = [&](Picture& first) {
            picture = std::move(first);
            return false;
        };
        FABRIC_TRY_VOID(watch_until(deadline, view, std::chrono::milliseconds(0), take_first));
    }
    return picture;
}

Result<AdminClient::WholePicture> AdminClient::picture(std::optional<Rest> rest) {
    PictureRequest request;
    request.set_with_rest(rest.has_value());
    if (rest) {
        request.set_decisions(rest->decisions);
        request.set_events(rest->events);
    }
    // The pieces of ten thousand sessions in few blocks, which go at once.
    google::protobuf::Arena memory;
    auto& reply = *google::protobuf::Arena::CreateMessage<PictureReply>(&memory);
    FABRIC_TRY_VOID(call(&Admin::Stub::Picture, request, reply));
    WholePicture whole;
    whole.picture = unpack_watch(reply.watch());
    unpack_all(reply.shards().shards(), whole.picture.shards);
    unpack_all(reply.waiting().waiting(), whole.picture.waiting);
    unpack_all(reply.vgpus().vgpus(), whole.vgpus);
    unpack_all(reply.decisions().decisions(), whole.decisions);
    whole.events = unpack_events(reply.events());
    whole.cluster = unpack(reply.hosts());
    return whole;
}

// No deadline: a watch lasts until `show` has seen enough, or until the daemon ends.
Result<void> AdminClient::watch(View view, std::chrono::milliseconds interval,
                                const std::function<bool(Picture&)>& show) {
    return watch_until(std::chrono::system_clock::time_point::max(), view, interval, show);
}

Result<void> AdminClient::watch_until(std::chrono::system_clock::time_point deadline, View view,
                                      std::chrono::milliseconds interval,
                                      const std::function<bool(Picture&)>& show) {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    WatchRequest request;
    request.set_interval_ms(interval.count());
    // A million regions would be sent with each picture, to be thrown away here.
    request.set_without_regions(view != View::kRegions);
    const auto reader = channel_->stub->Watch(&context, request);
    WatchReply reply;
    while (reader->Read(&reply)) {
        Picture picture = unpack_watch(reply);
        if (show(picture)) continue;
        // Finish() waits for the end of the stream, and the daemon sees no end of it otherwise.
        context.TryCancel();
        reader->Finish();
        return {};
    }
    const grpc::Status status = reader->Finish();
    if (code_of(status) == Errc::kTimeout) {
        return silence_of(channel_->socket_path, channel_->timeout, "watch fabricd");
    }
    last_text_ = status.error_message();
    // The daemon never ends a watch but by ending itself.
    return Error{status.ok() ? Errc::kDaemon : code_of(status), 0, "watch fabricd"};
}

Result<std::vector<VgpuView>> AdminClient::vgpus() {
    VgpusReply reply;
    FABRIC_TRY_VOID(call(&Admin::Stub::Vgpus, VgpusRequest{}, reply));
    std::vector<VgpuView> views;
    unpack_all(reply.vgpus(), views);
    return views;
}

Result<VgpuView> AdminClient::set_vgpu(const VgpuOrder& order) {
    SetVgpuRequest request;
    request.set_name(order.name);
    request.set_quota_bytes(order.quota_bytes);
    request.set_share_percent(order.share_percent);
    SetVgpuReply reply;
    FABRIC_TRY_VOID(call(&Admin::Stub::SetVgpu, request, reply));
    return unpack(reply.vgpu());
}

Result<void> AdminClient::migrate(const MoveOrder& order,
                                  const std::function<void(std::uint64_t, std::uint64_t)>& show) {
    // No deadline here either: a large shard under a small limit takes hours.
    grpc::ClientContext context;
    MigrateRequest request;
    request.set_shard(order.shard);
    request.set_target(order.target);
    request.set_bytes_per_second(order.bytes_per_second);
    const auto reader = channel_->stub->Migrate(&context, request);
    MigrateReply reply;
    bool ended = false;
    while (reader->Read(&reply)) {
        show(reply.moved_bytes(), reply.bytes());
        ended = ended || reply.done();
        // The last reply says how it ended; nothing when it ended well.
        last_text_ = reply.error();
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) {
        last_text_ = status.error_message();
        return Error{code_of(status), 0, "migrate"};
    }
    // The daemon ends the stream before its end only by ending itself.
    if (!ended) return Error{Errc::kDaemon, 0, "migrate"};
    if (!last_text_.empty()) return Error{Errc::kInternal, 0, "migrate"};
    return {};
}

Result<std::string> AdminClient::trace(
    const std::string& job, std::chrono::milliseconds length,
    const std::function<bool(const TraceSpan&, const std::vector<TraceBatch>&)>& take) {
    grpc::ClientContext context;
    // A daemon that is stopped sends nothing any more.
    context.set_deadline(std::chrono::system_clock::now() + length + channel_->timeout);
    TraceRequest request;
    request.set_job(job);
    request.set_length_ms(length.count());
    const auto reader = channel_->stub->Trace(&context, request);
    TraceReply reply;
    TraceSpan span;
    std::string ended_early;
    while (reader->Read(&reply)) {
        ended_early = reply.ended_early();
        if (reply.began_ns() != 0) span = {reply.began_ns(), reply.until_ns(), reply.unix_ns()};
        std::vector<TraceBatch> batches;
        for (const auto& session : reply.sessions()) batches.push_back(unpack_traced(session));
        if (take(span, batches)) continue;
        context.TryCancel();
        reader->Finish();
        return std::string();
    }
    const grpc::Status status = reader->Finish();
    if (status.ok()) return ended_early;
    // What has come stays of use.
    const bool has_begun = span.began_ns != 0;
    if (has_begun && status.error_code() == grpc::StatusCode::CANCELLED) {
        return std::string("fabricd has ended it, or this program took nothing for 5 s");
    }
    if (has_begun && code_of(status) == Errc::kDaemon) return std::string("fabricd is gone");
    if (code_of(status) == Errc::kTimeout) {
        if (has_begun) return std::string("fabricd answers no more");
        return silence_of(channel_->socket_path, channel_->timeout, "trace");
    }
    last_text_ = status.error_message();
    return Error{code_of(status), 0, "trace"};
}

Result<QuotaState> AdminClient::set_quota(const QuotaOrder& order) {
    SetQuotaRequest request;
    request.set_subject(order.subject);
    request.set_bytes(order.bytes);
    request.set_grace_ms(order.grace_ms);
    SetQuotaReply reply;
    FABRIC_TRY_VOID(call(&Admin::Stub::SetQuota, request, reply));
    // How long it waits yet is for `fabricctl devices` to show.
    return QuotaState{reply.quota_bytes(), reply.target_bytes(), reply.used_bytes(), 0};
}

Result<std::vector<Decision>> AdminClient::decisions(std::uint64_t id, std::uint32_t last) {
    DecisionsRequest request;
    request.set_id(id);
    request.set_last(last);
    DecisionsReply reply;
    FABRIC_TRY_VOID(call(&Admin::Stub::Decisions, request, reply));
    std::vector<Decision> decisions;
    unpack_all(reply.decisions(), decisions);
    return decisions;
}

Result<std::vector<EventView>> AdminClient::events(std::uint32_t last) {
    EventsRequest request;
    request.set_last(last);
    EventsReply reply;
    FABRIC_TRY_VOID(call(&Admin::Stub::Events, request, reply));
    return unpack_events(reply);
}

Result<ClusterView> AdminClient::hosts() {
    HostsReply reply;
    FABRIC_TRY_VOID(call(&Admin::Stub::Hosts, HostsRequest{}, reply));
    return unpack(reply);
}

Result<void> AdminClient::fence_host(const std::string& host) {
    FenceHostRequest request;
    request.set_host(host);
    FenceHostReply reply;
    // The daemon itself waits so long for its cluster.
    return call(&Admin::Stub::FenceHost, request, reply, std::chrono::seconds(10));
}

Result<void> AdminClient::drain(bool on) {
    DrainRequest request;
    request.set_on(on);
    DrainReply reply;
    return call(&Admin::Stub::Drain, request, reply);
}

Result<void> AdminClient::shutdown() {
    ShutdownReply reply;
    return call(&Admin::Stub::Shutdown, ShutdownRequest{}, reply);
}

}  // namespace fabricd
