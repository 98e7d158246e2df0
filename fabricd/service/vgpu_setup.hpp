// The vGPUs of the device file, served: made by main, used by the admin API and the control loop.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabricd/config/config.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/vgpu/vgpu_limits.hpp"
#include "fabricd/vgpu/vgpu_server.hpp"

namespace fabricd {

struct Vgpus {
    std::unique_ptr<VgpuLimits> limits;  // always there, empty without devices that name a GPU
    std::unique_ptr<VgpuServer> server;  // only with such devices
    std::string alarm;  // why there are none although devices name a GPU; "": all is well
};

/// How long an allocation beyond the quota waits for room where the device file does not say: 2 s
/// where the control loop may make the quota larger meanwhile, else 0.
std::uint64_t usual_wait_ms(const Config& config);

/// The devices with a GPU, as vGPUs; `wait_ms` for those that say nothing of it.
std::vector<VgpuSpec> vgpu_specs(const std::vector<DeviceSpec>& devices, std::uint64_t wait_ms);

/// Opens their pages in the state folder and listens next to the attach socket. After the daemon
/// has taken the lock of that folder. A disk that does not take the pages is no reason to keep all
/// others from the pool: then there are no vGPUs until the next start, and no process gets a GPU.
ErrorMessage start_vgpus(const Config& config, const std::vector<DeviceSpec>& devices,
                         Vgpus& vgpus);

}  // namespace fabricd
