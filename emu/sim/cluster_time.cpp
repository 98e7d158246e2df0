#include "emu/sim/cluster_time.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "emu/sim/random.hpp"
#include "libfabricshm/base/check.hpp"

namespace emu {

namespace {

constexpr double kOrigin = 3600;

}  // namespace

fabricd::BootTime ClusterTime::boot_time(Seconds at) noexcept {
    return fabricd::BootTime(
        std::chrono::nanoseconds(static_cast<std::int64_t>(std::llround((at + kOrigin) * 1e9))));
}

Seconds ClusterTime::seconds(fabricd::BootTime at) noexcept {
    return std::chrono::duration<double>(at.time_since_epoch()).count() - kOrigin;
}

void ClusterTime::start(int host, std::function<void()> body) {
    DaemonWait& one = daemon(host);
    FABRIC_CHECK(one.fiber == nullptr);
    one = {};
    one.fiber = std::make_unique<Fiber>(std::move(body));
    one.wake_at = now();
    schedule(now(), kWakeDaemon, host);
}

void ClusterTime::sleep(int host, Seconds until) {
    DaemonWait& one = daemon(host);
    if (one.is_ending || until <= now()) return;
    one.wake_at = until;
    schedule(until, kWakeDaemon, host);
    Fiber::wait();
}

void ClusterTime::hurry(int host, Seconds at) {
    DaemonWait& one = daemon(host);
    if (one.fiber == nullptr || one.wake_at <= at) return;
    one.wake_at = std::max(at, now());
    schedule(one.wake_at, kWakeDaemon, host);
}

void ClusterTime::wake(const Event& event) {
    DaemonWait& one = daemon(event.who);
    // It was hurried, or has ended: this event is of a wait that is over.
    if (one.fiber == nullptr || one.wake_at != event.at) return;
    if (one.is_paused) {
        one.is_overdue = true;
        return;
    }
    // No time of an event: what is left of the same moment wakes it no second time.
    one.wake_at = -1;
    one.fiber->resume();
    if (one.fiber->has_ended()) one.fiber.reset();
}

void ClusterTime::go_on(int host) {
    DaemonWait& one = daemon(host);
    one.is_paused = false;
    if (!one.is_overdue || one.fiber == nullptr) return;
    one.is_overdue = false;
    one.wake_at = now();
    schedule(now(), kWakeDaemon, host);
}

void ClusterTime::end(int host) {
    DaemonWait& one = daemon(host);
    if (one.fiber == nullptr) return;
    one.is_ending = true;
    one.fiber->resume();
    FABRIC_CHECK(one.fiber->has_ended());
    one.fiber.reset();
}

double ClusterTime::random() noexcept {
    return uniform(random_);
}

double ClusterTime::random(double median, double p99) noexcept {
    constexpr double kQuantile = 2.3263;  // of the normal distribution, at 0.99
    const double radius = std::sqrt(-2 * std::log1p(-random()));
    const double normal = radius * std::cos(2 * std::numbers::pi * random());
    return median * std::exp(normal * std::log(p99 / median) / kQuantile);
}

}  // namespace emu
