// The part of the admin API that is about vGPUs.

#include "fabricd/server/admin_service.hpp"
#include "fabricd/server/vgpu_codec.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Errc;
using namespace admin::v1;

namespace {

// The step alone is enough for a person here: it names what was wrong with the order.
grpc::Status status_of(const fabricshm::Error& error) {
    const std::string reason = reason_of(error);
    const std::string text = reason.empty() ? error.step : reason;  // the code says the rest
    if (error.code == Errc::kNotFound) return {grpc::StatusCode::NOT_FOUND, text};
    if (error.code == Errc::kInvalid) return {grpc::StatusCode::INVALID_ARGUMENT, text};
    if (error.code == Errc::kNoMemory) return {grpc::StatusCode::RESOURCE_EXHAUSTED, text};
    return {grpc::StatusCode::INTERNAL, describe(error)};
}

}  // namespace

grpc::Status AdminService::Vgpus(grpc::ServerContext*, const VgpusRequest*, VgpusReply* reply) {
    // A daemon without vGPUs has none to show, which is an answer.
    if (!hooks_.vgpus) return grpc::Status::OK;
    for (const auto& view : hooks_.vgpus()) pack(view, *reply->add_vgpus());
    return grpc::Status::OK;
}

grpc::Status AdminService::SetVgpu(grpc::ServerContext*, const SetVgpuRequest* request,
                                   SetVgpuReply* reply) {
    if (!hooks_.set_vgpu) return {grpc::StatusCode::NOT_FOUND, "there are no vGPUs"};
    const VgpuOrder order{request->name(), request->quota_bytes(), request->share_percent()};
    if (const auto done = hooks_.set_vgpu(order); !done.ok()) return status_of(done.error());
    // As it is right after the order, for the client to show.
    for (const auto& view : hooks_.vgpus()) {
        if (view.spec.name == order.name) pack(view, *reply->mutable_vgpu());
    }
    fabricshm::log(fabricshm::LogLevel::kInfo, "admin: vGPU %s: quota %s, share %u %%",
                   reply->vgpu().name().c_str(),
                   fabricshm::format_bytes(reply->vgpu().target_bytes()).c_str(),
                   reply->vgpu().share_percent());
    return grpc::Status::OK;
}

}  // namespace fabricd
