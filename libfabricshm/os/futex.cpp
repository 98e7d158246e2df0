#include "libfabricshm/os/futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

namespace fabricshm {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 &&
              std::atomic<std::uint32_t>::is_always_lock_free);

bool futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected,
                TimePoint deadline) noexcept {
    // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, which is what Clock counts: no
    // drift when a signal makes us start over. Without FUTEX_PRIVATE_FLAG it is keyed by the page,
    // not the address, and so works between processes.
    const auto since_boot = deadline.time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_boot);
    const timespec until{seconds.count(), (since_boot - seconds).count()};
    const timespec* timeout = deadline == TimePoint::max() ? nullptr : &until;
    const long result = ::syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, timeout, nullptr,
                                  FUTEX_BITSET_MATCH_ANY);
    return result == 0 || errno != ETIMEDOUT;
}

int futex_wake(std::atomic<std::uint32_t>* word, int count) noexcept {
    const long woken = ::syscall(SYS_futex, word, FUTEX_WAKE, count, nullptr, nullptr, 0);
    return woken < 0 ? 0 : static_cast<int>(woken);
}

}  // namespace fabricshm
