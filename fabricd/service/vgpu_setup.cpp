#include "fabricd/service/vgpu_setup.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include "fabricd/server/admission.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/proto/vgpu_messages.hpp"

namespace fabricd {

namespace {

// The loop's answer comes within two windows of a second, which is its usual length. Where nothing
// makes quotas grow by itself, only other processes of the vGPU could make room, and programs are
// used to hear at once that there is none.
constexpr std::uint64_t kWaitForLoopMs = 2000;

}  // namespace

std::uint64_t usual_wait_ms(const Config& config) {
    const bool loop_gives =
        config.control.mode == "on" && has_word(config.control.actions, "quota");
    return loop_gives ? kWaitForLoopMs : 0;
}

std::vector<VgpuSpec> vgpu_specs(const std::vector<DeviceSpec>& devices, std::uint64_t wait_ms) {
    std::vector<VgpuSpec> specs;
    for (const DeviceSpec& device : devices) {
        if (device.gpu.empty()) continue;
        specs.push_back(
            {device.name, device.gpu, device.memory_bytes, device.reserve_bytes,
             device.context_bytes, device.quota_bytes, device.share_percent, device.allow_uids,
             device.guaranteed_bytes, device.priority,
             device.wait_ms >= 0 ? static_cast<std::uint64_t>(device.wait_ms) : wait_ms});
    }
    return specs;
}

ErrorMessage start_vgpus(const Config& config, const std::vector<DeviceSpec>& devices,
                         Vgpus& vgpus) {
    const auto specs = vgpu_specs(devices, usual_wait_ms(config));
    auto limits = VgpuLimits::open(config.state.dir + "/vgpu", specs);
    if (!limits.ok()) {
        const auto error_message = error_message_of(limits.error(), "devices.file, state.dir");
        // A mistake in the device file is for a person; the disk may be well tomorrow.
        if (!error_message.is_of_host) return error_message;
        vgpus.limits = VgpuLimits::none();
        if (specs.empty()) return {};
        vgpus.alarm = "no vGPUs until fabricd is started again: " + *error_message;
        fabricshm::log(fabricshm::LogLevel::kError, "%s", vgpus.alarm.c_str());
        return {};
    }
    vgpus.limits = std::move(*limits);
    if (specs.empty()) return {};
    auto admission = Admission::make(config.server.allow_uids, config.server.socket_group);
    if (!admission.ok()) return describe(admission.error()) + " (server.socket_group)";
    VgpuServer::Options options;
    options.socket_path = fabricshm::proto::vgpu_socket_of(config.server.socket);
    options.socket_mode = config.server.socket_mode;
    options.admits = [admission = *admission](std::uint32_t uid, std::uint32_t gid, int socket) {
        return admission.admits(uid, gid, socket);
    };
    const std::string path = options.socket_path;
    auto server = VgpuServer::start(std::move(options), *vgpus.limits);
    if (!server.ok()) return error_message_of(server.error(), path + ", server.socket");
    vgpus.server = std::move(*server);
    // As the attach socket: the group's members may connect when there is one.
    if (admission->has_group() &&
        ::chown(path.c_str(), static_cast<uid_t>(-1), admission->group()) != 0) {
        return path + " can't be given to the group (server.socket_group)";
    }
    fabricshm::log(fabricshm::LogLevel::kInfo, "%zu vGPUs: processes attach at %s", specs.size(),
                   path.c_str());
    return {};
}

}  // namespace fabricd
