#include "libfabricshm/base/tick_clock.hpp"

#include <time.h>

#include <cstdio>
#include <cstring>

namespace fabricshm {

std::int64_t monotonic_clock_ns() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void TickClock::set(const TickRate& rate) noexcept {
    base_ns_.store(rate.base_ns, std::memory_order_relaxed);
    base_ticks_.store(rate.base_ticks, std::memory_order_relaxed);
    scale_.store(rate.scale, std::memory_order_relaxed);
}

TickMoment tick_moment() noexcept {
    TickMoment best;
    std::int64_t closest = INT64_MAX;
    for (int i = 0; i < 8; ++i) {
        const std::int64_t before = monotonic_clock_ns();
        const std::uint64_t ticks = read_ticks();
        const std::int64_t after = monotonic_clock_ns();
        if (after - before >= closest) continue;
        closest = after - before;
        best = {before + (after - before) / 2, ticks};
    }
    return best;
}

TickRate rate_between(const TickMoment& first, const TickMoment& last,
                      bool is_kernels_clock) noexcept {
    constexpr std::int64_t kMinApartNs = 10'000'000;
    const bool apart = last.ns - first.ns >= kMinApartNs && last.ticks > first.ticks;
    if (!is_kernels_clock || !apart) return {last.ns, last.ticks, 0};
    const auto passed = static_cast<unsigned __int128>(last.ns - first.ns) << 32;
    const auto scale = passed / (last.ticks - first.ticks);
    // A counter of less than 1 Hz: none.
    if (scale == 0 || scale >> 62 != 0) return {last.ns, last.ticks, 0};
    return {last.ns, last.ticks, static_cast<std::uint64_t>(scale)};
}

bool kernel_uses_ticks() noexcept {
#if defined(__x86_64__)
    const char* path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::FILE* file = std::fopen(path, "re");
    if (file == nullptr) return false;
    char name[16] = "";
    const bool read = std::fgets(name, sizeof name, file) != nullptr;
    std::fclose(file);
    return read && std::strcmp(name, "tsc\n") == 0;
#else
    return false;
#endif
}

}  // namespace fabricshm
