#include "libfabricshm/vgpu/throttle.hpp"

#include <time.h>

#include "libfabricshm/vgpu/nvml.hpp"
#include "libfabricshm/vgpu/share.hpp"

namespace fabricshm::cuda {

namespace {

constexpr std::int64_t kWaitMostNs = 2'000'000'000;

std::int64_t now_ns() noexcept {
    return Clock::now().time_since_epoch().count();
}

void nap(std::int64_t length_ns) noexcept {
    const timespec length{0, static_cast<long>(length_ns)};
    ::nanosleep(&length, nullptr);
}

// Measures and sets the rate when a window is over. On the thread that launches: once in a window
// for all processes together, so that no program gets a thread it did not start.
void control(Vgpu& vgpu, std::int64_t now) {
    ShareBucket& bucket = vgpu.ledger().file().bucket;
    if (!take_window(bucket, now)) return;
    std::uint64_t since_us = bucket.sampled_us.load(std::memory_order_relaxed);
    const auto busy = busy_share(vgpu, since_us);
    bucket.sampled_us.store(since_us, std::memory_order_relaxed);
    const auto before = static_cast<std::int64_t>(
        bucket.measured_ns.exchange(static_cast<std::uint64_t>(now), std::memory_order_relaxed));
    if (!busy) {
        static bool said = false;
        if (!said) say("%s: no compute share: NVML does not tell who is busy", vgpu.name().c_str());
        said = true;
        return;
    }
    // The first look only begins a window.
    if (before == 0 || now <= before) return;
    end_window(bucket, static_cast<double>(vgpu.share_percent()) / 100.0, *busy, now - before);
}

}  // namespace

void throttle(Vgpu& vgpu, std::uint64_t work) {
    ShareBucket& bucket = vgpu.ledger().file().bucket;
    const std::int64_t begin = now_ns();
    std::int64_t now = begin;
    vgpu.slot().launches.fetch_add(1, std::memory_order_relaxed);
    for (;;) {
        control(vgpu, now);
        const auto wait = try_spend(bucket, work, now);
        if (!wait) break;
        // Whatever the words say, no launch waits for longer.
        if (now - begin >= kWaitMostNs) {
            spend_anyway(bucket, work);
            break;
        }
        nap(*wait);
        now = now_ns();
    }
    if (now != begin) {
        vgpu.slot().waited_ns.fetch_add(static_cast<std::uint64_t>(now - begin),
                                        std::memory_order_relaxed);
    }
}

}  // namespace fabricshm::cuda
