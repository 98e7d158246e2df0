#include "fabricd/kubernetes/device_service.hpp"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;

namespace {

// gRPC notices that a peer has gone on a thread of its own, and wakes no waiter.
constexpr auto kCancelPoll = std::chrono::milliseconds(200);

grpc::Status status_of(const Error& error) {
    const auto code = error.code == Errc::kInvalid  ? grpc::StatusCode::INVALID_ARGUMENT
                      : error.code == Errc::kDaemon ? grpc::StatusCode::UNAVAILABLE
                                                    : grpc::StatusCode::INTERNAL;
    return {code, explanation_of(error)};
}

template <typename Ids>
DeviceIds ids_of(const Ids& ids) {
    return {ids.begin(), ids.end()};
}

v1beta1::ListAndWatchResponse message_of(const std::vector<PoolDevice>& list) {
    v1beta1::ListAndWatchResponse message;
    for (const PoolDevice& device : list) {
        v1beta1::Device& entry = *message.add_devices();
        entry.set_id(device.id);
        entry.set_health(device.is_healthy ? "Healthy" : "Unhealthy");
    }
    return message;
}

// The kubelet does not say which pod it asks for, so the name has to be new by itself: two
// allocations of 2^20 have the same one with a chance of 2^-25.
Result<std::string> new_arena_name() {
    std::uint64_t number = 0;
    if (::getrandom(&number, sizeof number, 0) != sizeof number) {
        return Error{Errc::kSystem, 0, "name an arena"};
    }
    char name[32];
    std::snprintf(name, sizeof name, "k8s-%016llx", static_cast<unsigned long long>(number));
    return std::string(name);
}

}  // namespace

DeviceService::DeviceService(const PluginOptions& options)
    : attach_socket_(options.socket),
      mounted_folder_(options.mounted_folder()),
      devices_(options.reserve) {}

void DeviceService::update(const std::optional<PoolState>& state) {
    const std::scoped_lock lock(mutex_);
    if (!devices_.update(state)) return;
    ++version_;
    changed_.notify_all();
}

void DeviceService::stop() {
    const std::scoped_lock lock(mutex_);
    is_stopping_ = true;
    while (!streams_.empty()) end(*streams_.front());
}

// With the lock held. Its handler returns as soon as it has the lock.
void DeviceService::end(Stream& stream) {
    stream.is_over = true;
    // It may be in Write(), to a peer that does not read.
    stream.context->TryCancel();
    std::erase(streams_, &stream);
    changed_.notify_all();
}

std::size_t DeviceService::streams() const {
    const std::scoped_lock lock(mutex_);
    return streams_.size();
}

int DeviceService::healthy() const {
    const std::scoped_lock lock(mutex_);
    return devices_.healthy();
}

grpc::Status DeviceService::GetDevicePluginOptions(grpc::ServerContext* /*context*/,
                                                   const v1beta1::Empty* /*request*/,
                                                   v1beta1::DevicePluginOptions* reply) {
    reply->set_get_preferred_allocation_available(true);
    return grpc::Status::OK;
}

// Until the stream, the plugin or the peer ends.
void DeviceService::follow(const Stream& stream,
                           grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) {
    std::unique_lock lock(mutex_);
    std::uint64_t sent = 0;
    while (!stream.is_over && !stream.context->IsCancelled()) {
        if (sent == version_) {
            changed_.wait_for(lock, kCancelPoll);
            continue;
        }
        sent = version_;
        const std::vector<PoolDevice> list = devices_.list();
        lock.unlock();
        const bool is_written = writer->Write(message_of(list));
        lock.lock();
        if (!is_written) return;
    }
}

grpc::Status DeviceService::ListAndWatch(
    grpc::ServerContext* context, const v1beta1::Empty* /*request*/,
    grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) {
    Stream stream{context};
    {
        const std::scoped_lock lock(mutex_);
        if (is_stopping_) return grpc::Status::CANCELLED;
        // Each takes a thread. The newest is the one of the kubelet that runs.
        if (streams_.size() >= kMaxStreams) end(*streams_.front());
        streams_.push_back(&stream);
    }
    follow(stream, writer);
    const std::scoped_lock lock(mutex_);
    std::erase(streams_, &stream);
    return grpc::Status::CANCELLED;
}

grpc::Status DeviceService::GetPreferredAllocation(
    grpc::ServerContext* /*context*/, const v1beta1::PreferredAllocationRequest* request,
    v1beta1::PreferredAllocationResponse* reply) {
    const std::scoped_lock lock(mutex_);
    for (const auto& container : request->container_requests()) {
        const auto chosen =
            devices_.preferred(ids_of(container.available_ids()),
                               ids_of(container.must_include_ids()), container.allocation_size());
        if (!chosen.ok()) return status_of(chosen.error());
        auto& ids = *reply->add_container_responses()->mutable_ids();
        ids.Assign(chosen->begin(), chosen->end());
    }
    return grpc::Status::OK;
}

grpc::Status DeviceService::Allocate(grpc::ServerContext* /*context*/,
                                     const v1beta1::AllocateRequest* request,
                                     v1beta1::AllocateResponse* reply) {
    std::vector<DeviceIds> containers;
    for (const auto& container : request->container_requests()) {
        containers.push_back(ids_of(container.ids()));
    }
    {
        const std::scoped_lock lock(mutex_);
        const auto checked = devices_.check_allocation(containers);
        if (!checked.ok()) return status_of(checked.error());
    }
    for (const DeviceIds& ids : containers) {
        const auto arena = new_arena_name();
        if (!arena.ok()) return status_of(arena.error());
        auto& granted = *reply->add_container_responses();
        auto& environment = *granted.mutable_envs();
        environment["FABRIC_SOCKET"] = attach_socket_;
        environment["FABRIC_ARENA"] = *arena;
        environment["FABRIC_ARENA_BYTES"] = std::to_string(ids.size() * fabricshm::kGiB);
        // The folder and not the socket: a daemon that starts again makes a new one. Connecting
        // needs no writable mount, and what is in the folder is not the container's.
        v1beta1::Mount& mount = *granted.add_mounts();
        mount.set_host_path(mounted_folder_);
        mount.set_container_path(mounted_folder_);
        mount.set_read_only(true);
    }
    return grpc::Status::OK;
}

// Not asked for in the registration: there is nothing to prepare.
grpc::Status DeviceService::PreStartContainer(grpc::ServerContext* /*context*/,
                                              const v1beta1::PreStartContainerRequest* request,
                                              v1beta1::PreStartContainerResponse* /*reply*/) {
    const std::scoped_lock lock(mutex_);
    const std::vector<DeviceIds> container{ids_of(request->ids())};
    const auto checked = devices_.check_allocation(container);
    return checked.ok() ? grpc::Status::OK : status_of(checked.error());
}

}  // namespace fabricd
