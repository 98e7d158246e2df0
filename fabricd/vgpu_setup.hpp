// The vGPUs of the device file, served: made by main, used by the admin API and the control loop.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabricd/config.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/vgpu/vgpu_limits.hpp"
#include "fabricd/vgpu/vgpu_server.hpp"

namespace fabricd {

struct Vgpus {
    std::unique_ptr<VgpuLimits> limits;  // always there, empty without devices that name a GPU
    std::unique_ptr<VgpuServer> server;  // only with such devices
    std::string alarm;  // why there are none although devices name a GPU; "": all is well
};

/// The devices with a GPU, as vGPUs.
std::vector<VgpuSpec> vgpu_specs(const std::vector<DeviceSpec>& devices);

/// Opens their pages in the state folder and listens beside the attach socket. After the daemon has
/// taken the lock of that folder. A disk that does not take the pages is no reason to keep all
/// others from the pool: then there are no vGPUs until the next start, and no process gets a GPU.
Complaint start_vgpus(const Config& config, const std::vector<DeviceSpec>& devices, Vgpus& vgpus);

}  // namespace fabricd
