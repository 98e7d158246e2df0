// The devices of this host that can be asked how busy they are.

#pragma once

#include <memory>
#include <vector>

#include "fabricd/telemetry/device_source.hpp"

namespace fabricd {

/// The packages, and with `gpus` what NVML knows. A driver that does not answer is logged once.
std::vector<std::unique_ptr<DeviceSource>> find_devices(bool gpus);

}  // namespace fabricd
