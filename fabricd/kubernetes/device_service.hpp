// DeviceService: what the kubelet asks of the plugin, over gRPC.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "deviceplugin.grpc.pb.h"
#include "fabricd/kubernetes/plugin_options.hpp"
#include "fabricd/kubernetes/pool_devices.hpp"

namespace fabricd {

/// The calls come on gRPC's threads, several at once; update() and stop() on the plugin's own. A
/// lock is held for no longer than a list is made.
///
/// The plugin keeps no record of what it gave: the kubelet does, also over restarts of both, and
/// never says when a container has ended.
class DeviceService final : public v1beta1::DevicePlugin::Service {
  public:
    /// Of the kubelet there is one; more come where a killed one's has not been noticed.
    static constexpr std::size_t kMaxStreams = 4;

    explicit DeviceService(const PluginOptions& options);

    /// What the daemon says now; nullopt: it does not answer. Streams get the list if it changed.
    void update(const std::optional<PoolState>& state);
    /// Ends the streams; new ones end at once.
    void stop();

    /// How many streams follow the list now.
    std::size_t streams() const;
    int healthy() const;

  private:
    using Status = grpc::Status;

    Status GetDevicePluginOptions(grpc::ServerContext* context, const v1beta1::Empty* request,
                                  v1beta1::DevicePluginOptions* reply) override;
    Status ListAndWatch(grpc::ServerContext* context, const v1beta1::Empty* request,
                        grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) override;
    Status GetPreferredAllocation(grpc::ServerContext* context,
                                  const v1beta1::PreferredAllocationRequest* request,
                                  v1beta1::PreferredAllocationResponse* reply) override;
    Status Allocate(grpc::ServerContext* context, const v1beta1::AllocateRequest* request,
                    v1beta1::AllocateResponse* reply) override;
    Status PreStartContainer(grpc::ServerContext* context,
                             const v1beta1::PreStartContainerRequest* request,
                             v1beta1::PreStartContainerResponse* reply) override;

    struct Stream {
        grpc::ServerContext* context;
        bool is_over = false;
    };
    void end(Stream& stream);
    void follow(const Stream& stream, grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer);

    const std::string attach_socket_;
    const std::string mounted_folder_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    PoolDevices devices_;
    std::uint64_t version_ = 1;  // of the list
    bool is_stopping_ = false;
    std::vector<Stream*> streams_;  // those not over, oldest first; each is its handler's
};

}  // namespace fabricd
