#include "emu/hosts/line_locks.hpp"

#include <sched.h>
#include <sys/mman.h>

#include "libfabricshm/base/check.hpp"

namespace emu {

namespace {

// One page of locks: enough that ranks seldom contend for one, few enough to be always cached.
constexpr Bytes kLocks = 1024;

// A process that was killed inside leaves its lock taken. The holder needs well under a
// microsecond, so a process that has yielded this often takes the lock over. Stealing from a live
// one would tear one line.
constexpr int kTimeout = 1 << 20;

}  // namespace

LineLocks::LineLocks() {
    void* memory = ::mmap(nullptr, kLocks * sizeof(*words_), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    FABRIC_CHECK(memory != MAP_FAILED);
    words_ = static_cast<std::atomic<std::uint32_t>*>(memory);  // zeros: all free
}

LineLocks::~LineLocks() {
    ::munmap(words_, kLocks * sizeof(*words_));
}

LineLocks::Guard::Guard(LineLocks& locks, Bytes line_offset) noexcept
    : word_(locks.words_[line_offset / fabricshm::kCacheLine % kLocks]) {
    // Acquire pairs with the release below: what the last holder moved is seen.
    for (int turn = 0; word_.exchange(1, std::memory_order_acquire) != 0 && turn < kTimeout;
         ++turn) {
        ::sched_yield();
    }
}

LineLocks::Guard::~Guard() {
    word_.store(0, std::memory_order_release);
}

}  // namespace emu
