#include "libfabricshm/client/fork_guard.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>

namespace fabricshm::fork_guard {

namespace {

struct Watched {
    std::mutex mutex;
    std::set<int> descriptors;
};

// Never destroyed: threads of sessions may still run while the process exits.
Watched& watched() {
    static auto* const all = new Watched;
    return *all;
}

// Relaxed everywhere: it changes only in a child that has one thread.
std::atomic<std::uint32_t> g_generation{1};

// The lock is held across the fork so that the child does not inherit a set that is half changed,
// by a thread which it does not have.
void before_fork() noexcept {
    watched().mutex.lock();
}

void in_parent() noexcept {
    watched().mutex.unlock();
}

void in_child() noexcept {
    // Without a word on the sockets: a goodbye would be the parent's.
    for (const int fd : watched().descriptors) ::close(fd);
    watched().descriptors.clear();
    g_generation.fetch_add(1, std::memory_order_relaxed);
    watched().mutex.unlock();
}

// Once per process, when the library is loaded.
[[maybe_unused]] const int g_registered = ::pthread_atfork(before_fork, in_parent, in_child);

}  // namespace

std::uint32_t generation() noexcept {
    return g_generation.load(std::memory_order_relaxed);
}

void watch(int fd) {
    const std::lock_guard lock(watched().mutex);
    watched().descriptors.insert(fd);
}

void unwatch(int fd) noexcept {
    const std::lock_guard lock(watched().mutex);
    watched().descriptors.erase(fd);
}

}  // namespace fabricshm::fork_guard
