#include "fabricd/server/admin_service.hpp"

#include <unistd.h>

#include <algorithm>

#include "fabricd/net/host_record.hpp"
#include "fabricd/server/admin_trace.hpp"
#include "fabricd/server/decision_codec.hpp"
#include "fabricd/server/host_codec.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/version.hpp"

namespace fabricd {

using fabricshm::log;
using fabricshm::LogLevel;
using namespace admin::v1;

namespace {

// What the client says of itself: gRPC does not know the peer of a unix socket. Only the daemon's
// own user and root can open it, and these could write into the log anyway.
std::string caller_of(const grpc::ServerContext& context) {
    constexpr std::size_t kMax = 100;
    const auto& metadata = context.client_metadata();
    const auto found = metadata.find("fabric-caller");
    if (found == metadata.end()) return "a client without a name";
    return printable(std::string(found->second.data(), std::min(found->second.size(), kMax)));
}

}  // namespace

AdminService::AdminService(AdminHooks hooks)
    : hooks_(std::move(hooks)), facts_{FABRIC_VERSION, static_cast<std::int32_t>(::getpid())} {}

void AdminService::stop() {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stopped_.notify_all();
}

grpc::Status AdminService::Status(grpc::ServerContext*, const StatusRequest*, StatusReply* reply) {
    pack_status(hooks_.snapshot({}), facts_, *reply);
    return grpc::Status::OK;
}

grpc::Status AdminService::Pools(grpc::ServerContext*, const PoolsRequest*, PoolsReply* reply) {
    pack(hooks_.snapshot({}).pool, *reply->add_pools());
    return grpc::Status::OK;
}

grpc::Status AdminService::Arenas(grpc::ServerContext*, const ArenasRequest*, ArenasReply* reply) {
    for (const auto& arena : hooks_.snapshot({.arenas = true}).arenas)
        pack(arena, *reply->add_arenas());
    return grpc::Status::OK;
}

// Filtered here: a client that asks for one arena gets no million regions of others.
grpc::Status AdminService::Regions(grpc::ServerContext*, const RegionsRequest* request,
                                   RegionsReply* reply) {
    const SnapshotParts parts{.regions = true, .arena_id = request->arena_id()};
    for (const auto& region : hooks_.snapshot(parts).regions) {
        const bool is_wanted = request->arena_id() == 0 || request->arena_id() == region.arena_id;
        if (is_wanted) pack(region, *reply->add_regions());
    }
    return grpc::Status::OK;
}

grpc::Status AdminService::Sessions(grpc::ServerContext*, const SessionsRequest*,
                                    SessionsReply* reply) {
    for (const auto& session : hooks_.snapshot({.sessions = true}).sessions)
        pack(session, *reply->add_sessions());
    return grpc::Status::OK;
}

grpc::Status AdminService::Groups(grpc::ServerContext*, const GroupsRequest*, GroupsReply* reply) {
    for (const auto& group : hooks_.snapshot({.groups = true}).groups)
        pack(group, *reply->add_groups());
    return grpc::Status::OK;
}

grpc::Status AdminService::Devices(grpc::ServerContext*, const DevicesRequest*,
                                   DevicesReply* reply) {
    for (const auto& device : hooks_.snapshot({}).devices) pack(device, *reply->add_devices());
    return grpc::Status::OK;
}

grpc::Status AdminService::Watch(grpc::ServerContext* context, const WatchRequest* request,
                                 grpc::ServerWriter<WatchReply>* writer) {
    // 0 is what a client sends that asks for none. Shorter than 100 ms only costs the control
    // thread its time.
    const std::int64_t wanted = request->interval_ms() == 0 ? 1000 : request->interval_ms();
    const std::chrono::milliseconds interval(std::clamp<std::int64_t>(wanted, 100, 60000));
    const LongCall mine(long_calls_);
    if (!mine.has_place()) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many watches"};
    SnapshotParts parts{.sessions = true, .arenas = true, .groups = true};
    parts.regions = !request->without_regions();
    bool is_there = true;
    while (is_there) {
        WatchReply reply;
        pack_watch(hooks_.snapshot(parts), facts_, !request->without_regions(), reply);
        // What the sampler took last, at most one of its intervals old: no watch makes it sample.
        if (hooks_.sample) pack(hooks_.sample(), *reply.mutable_telemetry());
        is_there = writer->Write(reply) && pause(*context, interval);
    }
    return grpc::Status::OK;
}

bool AdminService::pause(grpc::ServerContext& context, std::chrono::milliseconds interval) {
    const auto until = std::chrono::steady_clock::now() + interval;
    std::unique_lock lock(mutex_);
    // In slices: a client that went away is only seen by asking.
    while (!stopping_ && !context.IsCancelled()) {
        const auto now = std::chrono::steady_clock::now();
        if (now >= until) return true;
        stopped_.wait_until(lock, std::min(until, now + std::chrono::milliseconds(250)));
    }
    return false;
}

// One request and one turn of the control thread for what else were seven of each: a page asks once
// a second, and each call by itself costs gRPC's threads more than its answer.
grpc::Status AdminService::Picture(grpc::ServerContext* context, const PictureRequest* request,
                                   PictureReply* reply) {
    SnapshotParts parts{.sessions = true, .arenas = true, .groups = true};
    parts.shards = request->with_rest();
    const Snapshot snapshot = hooks_.snapshot(parts);
    WatchReply& watch = *reply->mutable_watch();
    pack_watch(snapshot, facts_, false, watch);
    if (hooks_.sample) pack(hooks_.sample(), *watch.mutable_telemetry());
    if (!request->with_rest()) return grpc::Status::OK;
    for (const ShardView& shard : snapshot.shards) {
        pack(shard, *reply->mutable_shards()->add_shards());
    }
    // What this daemon is not set up for is an empty part, and no error.
    const WaitingRequest waiting;
    Waiting(context, &waiting, reply->mutable_waiting());
    const VgpusRequest vgpus;
    Vgpus(context, &vgpus, reply->mutable_vgpus());
    const HostsRequest hosts;
    Hosts(context, &hosts, reply->mutable_hosts());
    DecisionsRequest decisions;
    decisions.set_last(request->decisions());
    Decisions(context, &decisions, reply->mutable_decisions());
    EventsRequest events;
    events.set_last(request->events());
    Events(context, &events, reply->mutable_events());
    return grpc::Status::OK;
}

grpc::Status AdminService::Decisions(grpc::ServerContext*, const DecisionsRequest* request,
                                     DecisionsReply* reply) {
    // An empty list would mean that the loop has decided nothing.
    if (!hooks_.decisions)
        return {grpc::StatusCode::FAILED_PRECONDITION,
                "control.mode is off: fabricd decides nothing (set it to dry-run or on)"};
    for (const auto& decision : hooks_.decisions(request->id(), request->last())) {
        pack(decision, *reply->add_decisions());
    }
    return grpc::Status::OK;
}

grpc::Status AdminService::Waiting(grpc::ServerContext*, const WaitingRequest*,
                                   WaitingReply* reply) {
    if (!hooks_.waiting) return {grpc::StatusCode::UNIMPLEMENTED, "no pages are read"};
    for (const auto& row : hooks_.waiting()) pack(row, *reply->add_waiting());
    return grpc::Status::OK;
}

grpc::Status AdminService::Trace(grpc::ServerContext* context, const TraceRequest* request,
                                 grpc::ServerWriter<TraceReply>* writer) {
    constexpr std::int64_t kMaxMs = 3'600'000;
    if (!hooks_.trace) {
        return {grpc::StatusCode::UNIMPLEMENTED,
                "this daemon is a guest of another host's pool: ask the owner's for traces"};
    }
    if (request->length_ms() < 1 || request->length_ms() > kMaxMs) {
        return {grpc::StatusCode::INVALID_ARGUMENT, "a trace takes 1 ms to 1 hour"};
    }
    const LongCall mine(long_calls_);
    if (!mine.has_place()) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many watches"};
    const auto begun =
        hooks_.trace(request->job(), std::chrono::milliseconds(request->length_ms()));
    if (!begun.ok()) {
        const auto code = begun.error().code;
        if (code == fabricshm::Errc::kNotFound) {
            return {grpc::StatusCode::NOT_FOUND, "no process of this host has an arena \"" +
                                                     printable(request->job().substr(0, 100)) +
                                                     "\" open (fabricctl arenas)"};
        }
        const bool busy = code == fabricshm::Errc::kBusy;
        return {busy ? grpc::StatusCode::RESOURCE_EXHAUSTED : grpc::StatusCode::INTERNAL,
                fabricshm::explanation_of(begun.error())};
    }
    StallWatch watch(kMaxTraceStall, [&] {
        // Now and not behind the write, which may stand until its client goes on, or is gone: gRPC
        // waits for bytes that a full socket has taken in part.
        (*begun)->end();
        log(LogLevel::kWarning, "trace of %s: its client took nothing for 5 s; it is over",
            printable(request->job()).c_str());
        context->TryCancel();
    });
    write_trace(
        **begun,
        [&](const TraceReply& reply) { return watch.watch([&] { return writer->Write(reply); }); },
        [&](std::chrono::milliseconds length) { return pause(*context, length); });
    return grpc::Status::OK;
}

grpc::Status AdminService::Events(grpc::ServerContext*, const EventsRequest* request,
                                  EventsReply* reply) {
    if (!hooks_.events) return {grpc::StatusCode::UNIMPLEMENTED, "no events are kept"};
    constexpr const char* kNames[] = {"debug", "info", "warning", "error", "off"};
    const std::size_t most = request->last() == 0 ? SIZE_MAX : request->last();
    for (const auto& event : hooks_.events(most)) {
        auto& message = *reply->add_events();
        message.set_number(event.number);
        message.set_unix_ms(event.unix_ms);
        message.set_level(kNames[static_cast<int>(event.level)]);
        message.set_text(printable(event.text));
    }
    return grpc::Status::OK;
}

grpc::Status AdminService::Hosts(grpc::ServerContext*, const HostsRequest*, HostsReply* reply) {
    // Of a daemon that is in no cluster: none, which is an answer.
    if (hooks_.hosts) pack(*hooks_.hosts(), *reply);
    return grpc::Status::OK;
}

grpc::Status AdminService::FenceHost(grpc::ServerContext* context, const FenceHostRequest* request,
                                     FenceHostReply*) {
    if (!hooks_.fence_host) return {grpc::StatusCode::NOT_FOUND, "this daemon is in no cluster"};
    if (!is_host_name(request->host())) {
        const std::string text = "\"" + printable(request->host().substr(0, 100)) +
                                 "\" is no name of a host: letters, digits, '.', '_' and '-', 63 "
                                 "at most";
        log(LogLevel::kWarning, "audit: hosts fence by %s: %s", caller_of(*context).c_str(),
            text.c_str());
        return {grpc::StatusCode::INVALID_ARGUMENT, text};
    }
    const auto done = hooks_.fence_host(request->host());
    log(LogLevel::kWarning, "audit: %s is called fenced by %s: %s",
        printable(request->host()).c_str(), caller_of(*context).c_str(),
        done.ok() ? "done" : fabricshm::explanation_of(done.error()).c_str());
    if (done.ok()) return grpc::Status::OK;
    const std::string text = fabricshm::explanation_of(done.error());
    switch (done.error().code) {
        case fabricshm::Errc::kNotFound:
            return {grpc::StatusCode::NOT_FOUND, text};
        case fabricshm::Errc::kInvalid:
            return {grpc::StatusCode::INVALID_ARGUMENT, text};
        default:
            return {grpc::StatusCode::INTERNAL, text};
    }
}

grpc::Status AdminService::Drain(grpc::ServerContext* context, const DrainRequest* request,
                                 DrainReply*) {
    log(LogLevel::kInfo, "audit: draining is %s, asked by %s", request->on() ? "on" : "off",
        caller_of(*context).c_str());
    hooks_.drain(request->on());
    return grpc::Status::OK;
}

// Answered before the daemon ends: its end waits for this handler.
grpc::Status AdminService::Shutdown(grpc::ServerContext* context, const ShutdownRequest*,
                                    ShutdownReply*) {
    log(LogLevel::kInfo, "audit: shutdown, asked by %s", caller_of(*context).c_str());
    hooks_.shutdown();
    return grpc::Status::OK;
}

}  // namespace fabricd
