#include "fabricd/control_quotas.hpp"

#include <algorithm>

namespace fabricd {

namespace {

QuotaDevice& device_of(Window& window, const VgpuView& vgpu) {
    const auto found =
        std::find_if(window.devices.begin(), window.devices.end(),
                     [&](const QuotaDevice& device) { return device.name == vgpu.spec.gpu; });
    if (found != window.devices.end()) return *found;
    window.devices.push_back({vgpu.spec.gpu,
                              static_cast<double>(vgpu.spec.device_bytes),
                              static_cast<double>(vgpu.spec.reserve_bytes),
                              {}});
    return window.devices.back();
}

}  // namespace

void QuotaSource::add_to(Window& window) {
    for (const VgpuView& vgpu : limits_.list()) {
        const std::string& name = vgpu.spec.name;
        // What was refused before the loop first looked is an old story.
        const auto [known, is_new] = refusals_.try_emplace(name, vgpu.denied_bytes);
        // A ledger is written by its processes: a count that fell begins anew, and a lie is worth
        // no more than asking for the whole GPU, which any of them may do.
        const Bytes before = is_new ? vgpu.denied_bytes : known->second;
        const Bytes refused = vgpu.denied_bytes - std::min(vgpu.denied_bytes, before);
        known->second = vgpu.denied_bytes;

        QuotaWindow user;
        user.name = name;
        // While a quota shrinks its target is what was decided last.
        const auto quota = vgpu.target_bytes != 0 ? std::min(vgpu.quota_bytes, vgpu.target_bytes)
                                                  : vgpu.quota_bytes;
        user.quota = static_cast<double>(quota);
        // No more is in use than was granted, whatever the ledger says: a use above all memory
        // would leave the vGPUs beside this one with nothing above theirs.
        user.used = static_cast<double>(std::min(vgpu.used_bytes, vgpu.quota_bytes));
        user.denied = static_cast<double>(std::min(refused, vgpu.spec.device_bytes));
        // The vGPUs of one GPU are equally fast, and nothing measures how busy each of them is:
        // without that, compute shares (S422) stay as they are, which a percentage of 0 says.
        device_of(window, vgpu).users.push_back(std::move(user));
    }
}

fabricshm::Result<void> DaemonActuators::resize_quota(const std::string& user,
                                                      std::uint64_t bytes) {
    return limits_.resize(user, bytes);
}

fabricshm::Result<void> DaemonActuators::set_compute_share(const std::string& user,
                                                           unsigned percent) {
    return limits_.set_share(user, percent);
}

}  // namespace fabricd
