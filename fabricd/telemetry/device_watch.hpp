// DeviceWatch: asks the devices on a thread of its own.

#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fabricd/telemetry/device_source.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// A driver that hangs holds up this thread and nothing else: its devices become stale.
/// Thread-safe.
class DeviceWatch {
  public:
    explicit DeviceWatch(std::vector<std::unique_ptr<DeviceSource>> sources);
    /// Waits for a call of a driver that is under way.
    ~DeviceWatch();
    DeviceWatch(const DeviceWatch&) = delete;
    DeviceWatch& operator=(const DeviceWatch&) = delete;

    /// Asks at once, and then every `period`.
    void start(fabricshm::Duration period);
    void stop() noexcept;

    /// Asks on the calling thread, for tests and before start().
    void look(std::int64_t now_ns);

    /// What is known; all of it stale when it is older than `stale_ns`.
    std::vector<DeviceSample> latest(std::int64_t now_ns, std::int64_t stale_ns) const;

  private:
    void run(fabricshm::Duration period);

    std::vector<std::unique_ptr<DeviceSource>> sources_;
    std::thread thread_;

    mutable std::mutex mutex_;  // guards what follows; never held while a driver is asked
    std::condition_variable changed_;
    bool stopping_ = false;
    std::int64_t asked_ns_ = 0;
    std::vector<DeviceSample> devices_;
};

}  // namespace fabricd
