#include "fabricd/kubernetes/kubelet_link.hpp"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <sys/stat.h>

#include <chrono>

#include "deviceplugin.grpc.pb.h"
#include "fabricd/kubernetes/plugin_options.hpp"
#include "fabricd/server/admin_server.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::Result;

namespace {

constexpr auto kRegisterTimeout = std::chrono::seconds(3);
constexpr const char* kApiVersion = "v1beta1";

}  // namespace

std::optional<SocketIdentity> socket_identity(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return std::nullopt;
    const timespec& changed = status.st_ctim;
    return SocketIdentity{status.st_dev, status.st_ino,
                          changed.tv_sec * std::int64_t{1'000'000'000} + changed.tv_nsec};
}

Result<void> register_plugin(const std::string& kubelet_socket, const std::string& endpoint) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // Connections are shared between channels, and with them the pause after one that failed.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub = v1beta1::Registration::NewStub(grpc::CreateCustomChannel(
        grpc_address(kubelet_socket), grpc::InsecureChannelCredentials(), arguments));

    v1beta1::RegisterRequest request;
    request.set_version(kApiVersion);
    request.set_endpoint(endpoint);
    request.set_resource_name(kPoolResource);
    request.mutable_options()->set_get_preferred_allocation_available(true);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kRegisterTimeout);
    v1beta1::Empty reply;
    const grpc::Status status = stub->Register(&context, request, &reply);
    if (status.ok()) return {};
    const auto code = status.error_code();
    if (code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::DEADLINE_EXCEEDED ||
        code == grpc::StatusCode::CANCELLED) {
        return explain({Errc::kDaemon, 0, "register"}, "no kubelet answers at %s",
                       kubelet_socket.c_str());
    }
    return explain({Errc::kInvalid, 0, "register"}, "the kubelet refuses: %s",
                   status.error_message().c_str());
}

}  // namespace fabricd
