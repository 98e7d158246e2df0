#include "fabricd/telemetry/device_watch.hpp"

#include <pthread.h>

#include <utility>

#include "libfabricshm/base/log.hpp"

namespace fabricd {

using fabricshm::log;
using fabricshm::LogLevel;

namespace {

// An alarm for people, whatever the control loop makes of it; also when it is over.
void tell_faults(const std::vector<DeviceSample>& before, const std::vector<DeviceSample>& now) {
    for (std::size_t i = 0; i < now.size(); ++i) {
        const DeviceFaults known = i < before.size() ? before[i].faults : 0;
        if (now[i].faults == known) continue;
        const std::string words = words_of(now[i].faults);
        log(now[i].faults != 0 ? LogLevel::kWarning : LogLevel::kInfo, "device %s: faults: %s",
            now[i].name.c_str(), words.empty() ? "none any more" : words.c_str());
    }
}

}  // namespace

DeviceWatch::DeviceWatch(std::vector<std::unique_ptr<DeviceSource>> sources)
    : sources_(std::move(sources)) {}

DeviceWatch::~DeviceWatch() {
    stop();
}

void DeviceWatch::start(fabricshm::Duration period) {
    if (sources_.empty()) return;
    thread_ = std::thread([this, period] { run(period); });
    ::pthread_setname_np(thread_.native_handle(), "fabric-devices");
}

void DeviceWatch::stop() noexcept {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void DeviceWatch::run(fabricshm::Duration period) {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        // A driver may take as long as it likes, and latest() must not wait for it.
        lock.unlock();
        look(fabricshm::monotonic_ns());
        lock.lock();
        changed_.wait_for(lock, period, [this] { return stopping_; });
    }
}

void DeviceWatch::look(std::int64_t now_ns) {
    std::vector<DeviceSample> found;
    for (const auto& source : sources_) source->sample(now_ns, found);
    // When they were asked, not when they answered: one that hangs makes all of them old.
    tell_faults(devices_, found);  // only this thread writes them
    const std::lock_guard lock(mutex_);
    asked_ns_ = now_ns;
    devices_ = std::move(found);
}

// A copy, so that no reader holds the lock while it reads.
std::vector<DeviceSample> DeviceWatch::latest(std::int64_t now_ns, std::int64_t stale_ns) const {
    const std::lock_guard lock(mutex_);
    std::vector<DeviceSample> devices = devices_;
    const bool old = now_ns - asked_ns_ > stale_ns;
    for (DeviceSample& device : devices) device.stale = device.stale || old;
    return devices;
}

}  // namespace fabricd
