#include "fabricd/net/boot_clock.hpp"

#include <ctime>

namespace fabricd {

BootTime BootClock::now() noexcept {
    timespec time{};
    // Fails for unknown clocks only, and Linux has had this one since 2.6.39.
    ::clock_gettime(CLOCK_BOOTTIME, &time);
    return BootTime(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

}  // namespace fabricd
