// DeviceSource: something that knows what devices of this host do right now.

#pragma once

#include <vector>

#include "fabricd/telemetry/sample.hpp"

namespace fabricd {

/// Used by the sampler's thread alone.
class DeviceSource {
  public:
    virtual ~DeviceSource() = default;

    /// Appends its devices, always the same ones in the same order. One that cannot be asked this
    /// time is `stale`. `now_ns` is CLOCK_MONOTONIC.
    virtual void sample(std::int64_t now_ns, std::vector<DeviceSample>& devices) = 0;
};

}  // namespace fabricd
