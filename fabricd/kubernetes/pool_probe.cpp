#include "fabricd/kubernetes/pool_probe.hpp"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>

#include "admin.grpc.pb.h"
#include "fabricd/server/admin_server.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::explain;
using fabricshm::Result;

namespace {

constexpr auto kProbeTimeout = std::chrono::seconds(2);
// Between two attempts to connect. gRPC's own goes up to two minutes.
constexpr int kMaxReconnectMs = 200;
// Alarms are texts of the daemon's, a few.
constexpr int kMaxStatusBytes = 4 << 20;

// gRPC says UNAVAILABLE to all of these.
Error failure_of(const grpc::Status& status, const std::string& path) {
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
        return explain({Errc::kTimeout, 0, "ask fabricd"}, "fabricd at %s does not answer",
                       path.c_str());
    }
    if (probe_socket(path) == Errc::kDenied) {
        return explain({Errc::kDenied, 0, "ask fabricd"}, "%s is for fabricd's own user and root",
                       path.c_str());
    }
    return explain({Errc::kDaemon, 0, "ask fabricd"}, "no fabricd at %s", path.c_str());
}

}  // namespace

struct PoolProbe::Impl {
    std::string path;
    std::unique_ptr<admin::v1::Admin::Stub> stub;
};

PoolProbe::PoolProbe(const std::string& admin_socket) : impl_(std::make_unique<Impl>()) {
    grpc::ChannelArguments arguments;
    // A proxy of the environment has no business with a socket of this host.
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
    arguments.SetMaxReceiveMessageSize(kMaxStatusBytes);
    impl_->path = admin_socket;
    impl_->stub = admin::v1::Admin::NewStub(grpc::CreateCustomChannel(
        grpc_address(admin_socket), grpc::InsecureChannelCredentials(), arguments));
}
PoolProbe::PoolProbe(PoolProbe&&) noexcept = default;
PoolProbe::~PoolProbe() = default;

Result<PoolState> PoolProbe::read() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kProbeTimeout);
    admin::v1::StatusReply reply;
    const grpc::Status status = impl_->stub->Status(&context, admin::v1::StatusRequest{}, &reply);
    if (!status.ok()) return failure_of(status, impl_->path);
    return PoolState{reply.pool().capacity_bytes(), reply.draining()};
}

}  // namespace fabricd
