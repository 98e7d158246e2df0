// TickClock: the time by the processor's counter, which is read in a third of the time that
// CLOCK_MONOTONIC takes. For traces.
//
// One process, the daemon, finds out how ticks become nanoseconds, and hands the figures to all
// that are traced: their times then compare as well as their counters do, and on a host whose
// kernel keeps time by the counter these are one.

#pragma once

#include <atomic>
#include <cstdint>

namespace fabricshm {

/// How ticks become CLOCK_MONOTONIC. `scale` 0: there is no counter to rely on, and times are read
/// from the clock itself.
struct TickRate {
    std::int64_t base_ns = 0;
    std::uint64_t base_ticks = 0;
    std::uint64_t scale = 0;  // nanoseconds for 2^32 ticks
};

/// The counter; 0 where there is none.
inline std::uint64_t read_ticks() noexcept {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

std::int64_t monotonic_clock_ns() noexcept;

/// Converts; readers and the one that changes the rate may meet, and then a time or two is wrong by
/// what both rates differ in.
class TickClock {
  public:
    void set(const TickRate& rate) noexcept;

    /// Now; not below 0.
    std::int64_t now_ns() const noexcept {
        // Relaxed, like the others: see above.
        const std::uint64_t scale = scale_.load(std::memory_order_relaxed);
        if (scale == 0) return monotonic_clock_ns();
        const auto ticks =
            static_cast<std::int64_t>(read_ticks() - base_ticks_.load(std::memory_order_relaxed));
        const __int128 passed = static_cast<__int128>(ticks) * static_cast<__int128>(scale) >> 32;
        return base_ns_.load(std::memory_order_relaxed) + static_cast<std::int64_t>(passed);
    }

  private:
    std::atomic<std::int64_t> base_ns_{0};
    std::atomic<std::uint64_t> base_ticks_{0};
    std::atomic<std::uint64_t> scale_{0};
};

/// The counter and the clock at one moment, as close to each other as a few tries get them.
struct TickMoment {
    std::int64_t ns = 0;
    std::uint64_t ticks = 0;
};
TickMoment tick_moment() noexcept;

/// The rate from two moments; no scale (0) when they are less than 10 ms apart, or when the kernel
/// itself does not keep time by the counter (`is_kernels_clock`).
TickRate rate_between(const TickMoment& first, const TickMoment& last,
                      bool is_kernels_clock) noexcept;

/// Whether the kernel of this host does.
bool kernel_uses_ticks() noexcept;

}  // namespace fabricshm
