// The vGPUs of the device file, served: made by main, used by the admin API and the control loop.

#pragma once

#include <memory>
#include <vector>

#include "fabricd/config.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/vgpu/vgpu_limits.hpp"
#include "fabricd/vgpu/vgpu_server.hpp"

namespace fabricd {

struct Vgpus {
    std::unique_ptr<VgpuLimits> limits;  // always there, empty without devices that name a GPU
    std::unique_ptr<VgpuServer> server;  // only with such devices
};

/// The devices with a GPU, as vGPUs.
std::vector<VgpuSpec> vgpu_specs(const std::vector<DeviceSpec>& devices);

/// Opens their pages in the state folder and listens beside the attach socket. After the daemon has
/// taken the lock of that folder.
Complaint start_vgpus(const Config& config, const std::vector<DeviceSpec>& devices, Vgpus& vgpus);

}  // namespace fabricd
