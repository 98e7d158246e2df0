#include "libfabricshm/client/fork_guard.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "libfabricshm/os/poison.hpp"

namespace fabricshm::fork_guard {

namespace {

struct Watched {
    std::mutex mutex;
    std::set<int> descriptors;
    std::map<std::byte*, Bytes> holes;
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
    // What the kernel left free here a later mapping could take, and a pointer of the parent's
    // would hit that. Without room for it the addresses stay free: a touch is SIGSEGV as well.
    for (const auto& [data, bytes] : watched().holes) {
        PoisonWatch::forget_in_child(data);
        ::mmap(data, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
               0);
    }
    watched().holes.clear();
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

Hole::Hole(std::byte* data, Bytes bytes) : data_(data) {
    const std::lock_guard lock(watched().mutex);
    watched().holes[data] = bytes;
}

Hole::~Hole() {
    const std::lock_guard lock(watched().mutex);
    watched().holes.erase(data_);
}

std::shared_ptr<const Fd> guarded(Fd file) {
    watch(file.get());
    return {new Fd(std::move(file)), [](const Fd* old) {
                unwatch(old->get());
                delete old;
            }};
}

std::shared_ptr<const std::vector<Fd>> guarded(std::vector<Fd> files) {
    for (const Fd& file : files) watch(file.get());
    return {new std::vector<Fd>(std::move(files)), [](const std::vector<Fd>* old) {
                for (const Fd& file : *old) unwatch(file.get());
                delete old;
            }};
}

}  // namespace fabricshm::fork_guard
