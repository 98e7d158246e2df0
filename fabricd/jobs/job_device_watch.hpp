// Looks at the devices of a job while it runs, on a thread of its own.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fabricd/jobs/job_repair.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// One look. Nothing: they can't be looked at now, and what was known stays. Bounded by itself: two
/// seconds at most.
using DeviceLook = std::function<std::optional<std::vector<DeviceState>>()>;

/// All calls are for one thread; the looks are made on another one, so that a daemon that does not
/// answer holds up nothing but the end, for the rest of one look.
class JobDeviceWatch {
  public:
    JobDeviceWatch(DeviceLook look, fabricshm::Duration interval);
    ~JobDeviceWatch();

    /// Looks at once. The number of that look.
    std::uint64_t ask();
    /// The looks up to this one are over, also those that saw nothing.
    std::uint64_t looked() const;

    /// Readable after each look.
    int wakeup() const noexcept;
    /// What the newest look saw, once.
    std::optional<std::vector<DeviceState>> take();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
