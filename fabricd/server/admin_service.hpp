// The handlers of the admin API, on gRPC's threads.

#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "admin.grpc.pb.h"
#include "fabricd/server/admin_codec.hpp"
#include "fabricd/server/admin_server.hpp"

namespace fabricd {

/// A place among the calls that last. Each of them keeps a thread of gRPC for as long as its client
/// likes and asks for snapshots all the time: without a limit they would leave no thread to a
/// client that only wants to know how the daemon is.
class LongCall {
  public:
    static constexpr int kMax = 16;

    // Relaxed: the counter guards nothing but itself.
    explicit LongCall(std::atomic<int>& taken) noexcept
        : taken_(taken), has_place_(taken.fetch_add(1, std::memory_order_relaxed) < kMax) {}
    ~LongCall() { taken_.fetch_sub(1, std::memory_order_relaxed); }
    LongCall(const LongCall&) = delete;
    LongCall& operator=(const LongCall&) = delete;

    bool has_place() const noexcept { return has_place_; }

  private:
    std::atomic<int>& taken_;
    bool has_place_;
};

/// Short handlers answer from one snapshot. All of them may run at once, on threads of gRPC.
/// A client that can open the socket is the daemon's own user or root, so that nothing else is
/// checked but the values.
class AdminService final : public admin::v1::Admin::Service {
  public:
    explicit AdminService(AdminHooks hooks);

    /// Makes the watches return. Idempotent.
    void stop();

    grpc::Status Status(grpc::ServerContext*, const admin::v1::StatusRequest*,
                        admin::v1::StatusReply* reply) override;
    grpc::Status Pools(grpc::ServerContext*, const admin::v1::PoolsRequest*,
                       admin::v1::PoolsReply* reply) override;
    grpc::Status Arenas(grpc::ServerContext*, const admin::v1::ArenasRequest*,
                        admin::v1::ArenasReply* reply) override;
    grpc::Status Regions(grpc::ServerContext*, const admin::v1::RegionsRequest* request,
                         admin::v1::RegionsReply* reply) override;
    grpc::Status Sessions(grpc::ServerContext*, const admin::v1::SessionsRequest*,
                          admin::v1::SessionsReply* reply) override;
    grpc::Status Groups(grpc::ServerContext*, const admin::v1::GroupsRequest*,
                        admin::v1::GroupsReply* reply) override;
    grpc::Status Devices(grpc::ServerContext*, const admin::v1::DevicesRequest*,
                         admin::v1::DevicesReply* reply) override;
    grpc::Status Vgpus(grpc::ServerContext*, const admin::v1::VgpusRequest*,
                       admin::v1::VgpusReply* reply) override;
    grpc::Status SetVgpu(grpc::ServerContext*, const admin::v1::SetVgpuRequest* request,
                         admin::v1::SetVgpuReply* reply) override;
    grpc::Status Shards(grpc::ServerContext*, const admin::v1::ShardsRequest*,
                        admin::v1::ShardsReply* reply) override;
    grpc::Status Migrate(grpc::ServerContext* context, const admin::v1::MigrateRequest* request,
                         grpc::ServerWriter<admin::v1::MigrateReply>* writer) override;
    grpc::Status SetQuota(grpc::ServerContext*, const admin::v1::SetQuotaRequest* request,
                          admin::v1::SetQuotaReply* reply) override;
    grpc::Status Watch(grpc::ServerContext* context, const admin::v1::WatchRequest* request,
                       grpc::ServerWriter<admin::v1::WatchReply>* writer) override;
    grpc::Status Picture(grpc::ServerContext* context, const admin::v1::PictureRequest* request,
                         admin::v1::PictureReply* reply) override;
    grpc::Status Decisions(grpc::ServerContext*, const admin::v1::DecisionsRequest* request,
                           admin::v1::DecisionsReply* reply) override;
    grpc::Status Waiting(grpc::ServerContext*, const admin::v1::WaitingRequest*,
                         admin::v1::WaitingReply* reply) override;
    grpc::Status Trace(grpc::ServerContext* context, const admin::v1::TraceRequest* request,
                       grpc::ServerWriter<admin::v1::TraceReply>* writer) override;
    grpc::Status Events(grpc::ServerContext*, const admin::v1::EventsRequest* request,
                        admin::v1::EventsReply* reply) override;
    grpc::Status Hosts(grpc::ServerContext*, const admin::v1::HostsRequest*,
                       admin::v1::HostsReply* reply) override;
    grpc::Status FenceHost(grpc::ServerContext* context, const admin::v1::FenceHostRequest* request,
                           admin::v1::FenceHostReply*) override;
    grpc::Status Drain(grpc::ServerContext* context, const admin::v1::DrainRequest* request,
                       admin::v1::DrainReply*) override;
    grpc::Status Shutdown(grpc::ServerContext* context, const admin::v1::ShutdownRequest*,
                          admin::v1::ShutdownReply*) override;

  private:
    bool stopping() {
        const std::lock_guard lock(mutex_);
        return stopping_;
    }
    /// Sleeps one interval; false when the watch should end.
    bool pause(grpc::ServerContext& context, std::chrono::milliseconds interval);

    AdminHooks hooks_;
    DaemonFacts facts_;
    std::atomic<int> long_calls_{0};  // watches, and moves that are looked at
    std::mutex mutex_;                // of stopping_
    std::condition_variable stopped_;
    bool stopping_ = false;
};

}  // namespace fabricd
