#include "fabricd/telemetry/find_devices.hpp"

#include <utility>

#include "fabricd/telemetry/cpu_source.hpp"
#include "fabricd/telemetry/nvml_source.hpp"
#include "libfabricshm/base/log.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::log;
using fabricshm::LogLevel;

std::vector<std::unique_ptr<DeviceSource>> find_devices(bool gpus) {
    std::vector<std::unique_ptr<DeviceSource>> sources;
    sources.push_back(
        std::make_unique<CpuSource>(fabricshm::HostFiles{}, fabricshm::read_packages()));
    if (!gpus) return sources;
    auto nvml = NvmlSource::open();
    if (nvml.ok()) {
        sources.push_back(std::move(nvml).value());
    } else if (nvml.error().code != Errc::kNotFound) {
        // No library is a host without GPUs; one that fails is worth a line.
        log(LogLevel::kWarning, "GPUs are not measured: %s", describe(nvml.error()).c_str());
    }
    return sources;
}

}  // namespace fabricd
