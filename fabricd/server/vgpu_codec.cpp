#include "fabricd/server/vgpu_codec.hpp"

namespace fabricd {

void pack(const VgpuView& view, admin::v1::Vgpu& message) {
    message.set_name(view.spec.name);  // both texts are checked where the device file is read
    message.set_gpu(view.spec.gpu);
    message.set_device_bytes(view.spec.device_bytes);
    message.set_reserve_bytes(view.spec.reserve_bytes);
    message.set_quota_bytes(view.quota_bytes);
    message.set_target_bytes(view.target_bytes);
    message.set_share_percent(view.share_percent);
    message.set_used_bytes(view.used_bytes);
    message.set_peak_bytes(view.peak_bytes);
    message.set_denied(view.denied);
    message.set_denied_bytes(view.denied_bytes);
    message.set_busy_ns(view.busy_ns);
    message.set_busy_known(view.busy_known);
    for (const std::uint32_t uid : view.spec.allow_uids) message.add_allow_uids(uid);
    for (const auto& tenant : view.tenants) {
        auto& one = *message.add_tenants();
        one.set_pid(tenant.pid);
        one.set_bytes(tenant.bytes);
        one.set_denied(tenant.denied);
        one.set_denied_bytes(tenant.denied_bytes);
        one.set_busy_ns(tenant.busy_ns);
    }
}

VgpuView unpack(const admin::v1::Vgpu& message) {
    VgpuView view;
    view.spec.name = message.name();
    view.spec.gpu = message.gpu();
    view.spec.device_bytes = message.device_bytes();
    view.spec.reserve_bytes = message.reserve_bytes();
    view.quota_bytes = message.quota_bytes();
    view.target_bytes = message.target_bytes();
    view.share_percent = message.share_percent();
    view.used_bytes = message.used_bytes();
    view.peak_bytes = message.peak_bytes();
    view.denied = message.denied();
    view.denied_bytes = message.denied_bytes();
    view.busy_ns = message.busy_ns();
    view.busy_known = message.busy_known();
    for (const std::uint32_t uid : message.allow_uids()) view.spec.allow_uids.push_back(uid);
    for (const auto& tenant : message.tenants()) {
        view.tenants.push_back({tenant.pid(), tenant.bytes(), tenant.denied(),
                                tenant.denied_bytes(), tenant.busy_ns()});
    }
    return view;
}

}  // namespace fabricd
