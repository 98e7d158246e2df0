#include "libfabricshm/shm/link_clock.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace fabricshm {

namespace {

// A sleep ends late by the timer's slack (50 us) and the way back onto a core: the last stretch is
// spun away, with yields while it is long enough for another thread to use the core.
constexpr std::uint64_t kSpinFor = 150'000;
constexpr std::uint64_t kYieldAbove = 20'000;

// How long the rate of the time stamp is trusted before the system's clock is read again. Its error
// is that of two readings over all the time between them: below a microsecond in the first of these
// spans, nothing to speak of in later ones.
constexpr std::uint64_t kTrust = 1'000'000;

std::uint64_t system_time() noexcept {
    timespec time;
    ::clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(time.tv_nsec);
}

#if defined(__x86_64__)
std::uint64_t stamp() noexcept {
    return __builtin_ia32_rdtsc();
}

// True when the kernel has found the time stamp to be steady and the same on all processors.
bool stamp_is_steady() {
    std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    std::string source;
    return std::getline(file, source) && source == "tsc";
}
#else
std::uint64_t stamp() noexcept {
    return 0;
}
bool stamp_is_steady() {
    return false;
}
#endif

// What one thread knows of both clocks.
struct Anchor {
    std::uint64_t first_time = 0;
    std::uint64_t first_stamp = 0;
    std::uint64_t time = 0;
    std::uint64_t at = 0;     // stamp at `time`
    double ns_per_tick = 0;   // 0: not known yet
    std::uint64_t limit = 0;  // ticks after `at` for which it holds
};

class MonotonicClock final : public LinkClock {
  public:
    std::uint64_t now() noexcept override {
        if (!steady_) return system_time();
        thread_local Anchor anchor;
        const std::uint64_t ticks = stamp() - anchor.at;
        if (ticks >= anchor.limit) return look_again(anchor);
        return anchor.time +
               static_cast<std::uint64_t>(static_cast<double>(ticks) * anchor.ns_per_tick);
    }

    std::uint64_t wait(std::uint64_t until) noexcept override {
        std::uint64_t time = now();
        for (; time < until; time = now()) {
            const std::uint64_t left = until - time;
            if (left > kSpinFor) {
                const std::uint64_t wake = until - kSpinFor;
                const timespec at{static_cast<time_t>(wake / 1'000'000'000),
                                  static_cast<long>(wake % 1'000'000'000)};
                // A signal ends it early; then the loop reads the time again.
                ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
            } else if (left > kYieldAbove) {
                ::sched_yield();
            }
        }
        return time;
    }

    std::uint64_t cost() const noexcept override { return cost_; }

  private:
    // The quickest of some batches: the others had the core taken away.
    std::uint64_t measure_cost() noexcept {
        constexpr std::uint64_t kReadings = 64;
        const std::uint64_t begin = system_time();
        while (system_time() < begin + 2 * kTrust) (void)now();  // until the rate is known
        std::uint64_t best = kTrust;
        for (int batch = 0; batch < 16; ++batch) {
            const std::uint64_t start = system_time();
            for (std::uint64_t i = 0; i < kReadings; ++i) (void)now();
            best = std::min(best, (system_time() - start) / kReadings);
        }
        return best;
    }

    // Reads both clocks at one moment: again when something came between the two readings.
    static void read_both(Anchor& anchor) noexcept {
        constexpr std::uint64_t kClose = 2000;  // ticks: less than a microsecond
        std::uint64_t nearest = ~std::uint64_t{0};
        for (int attempt = 0; attempt < 8 && nearest > kClose; ++attempt) {
            const std::uint64_t before = stamp();
            const std::uint64_t time = system_time();
            const std::uint64_t apart = stamp() - before;
            if (apart >= nearest) continue;
            nearest = apart;
            anchor.at = before + apart / 2;
            anchor.time = time;
        }
    }

    static std::uint64_t look_again(Anchor& anchor) noexcept {
        read_both(anchor);
        const std::uint64_t time = anchor.time;
        if (anchor.first_time == 0) {
            anchor.first_time = time;
            anchor.first_stamp = anchor.at;
        }
        // Before a millisecond has passed the rate is not known well enough: limit stays 0, so that
        // the next reading comes here again.
        if (time - anchor.first_time < kTrust) return time;
        anchor.ns_per_tick = static_cast<double>(time - anchor.first_time) /
                             static_cast<double>(anchor.at - anchor.first_stamp);
        anchor.limit = static_cast<std::uint64_t>(kTrust / anchor.ns_per_tick);
        return time;
    }

    const bool steady_ = stamp_is_steady();
    const std::uint64_t cost_ = measure_cost();
};

}  // namespace

LinkClock& LinkClock::real() noexcept {
    static MonotonicClock clock;
    return clock;
}

}  // namespace fabricshm
