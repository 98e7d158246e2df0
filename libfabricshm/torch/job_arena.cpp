#include "libfabricshm/torch/job_arena.hpp"

#include <fabricshm/cuda.h>
#include <pthread.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "libfabricshm/torch/call.hpp"

namespace fabricshm::torch_backend {

struct ArenaRegistry {
    using Owned = std::unique_ptr<JobArena>;

    std::mutex opening;  // held while fabricd makes an arena: two openers of one name get one arena
    std::mutex mutex;    // the rest, for a few instructions at a time
    std::vector<Owned> arenas;  // newest last

    // By address, in any of the arenas: few are open at a time, mostly one.
    JobArena* find(const void* address) {
        for (const Owned& arena : arenas) {
            if (arena->holds(address)) return arena.get();
        }
        return nullptr;
    }

    // Of a process with several jobs the newest is where new tensors go.
    JobArena* newest_in_use() {
        for (auto arena = arenas.rbegin(); arena != arenas.rend(); ++arena) {
            if ((*arena)->groups_ > 0 && (*arena)->is_mine()) return arena->get();
        }
        return nullptr;
    }

    // Returns the arena when nothing holds it any more, to be closed after the mutex is released:
    // closing joins the session's threads.
    Owned take_if_unused(JobArena* arena) {
        if (arena->groups_ > 0 || arena->blocks_ > 0) return nullptr;
        for (auto held = arenas.begin(); held != arenas.end(); ++held) {
            if (held->get() != arena) continue;
            Owned taken = std::move(*held);
            arenas.erase(held);
            return taken;
        }
        return nullptr;
    }

    // Under the mutex of the caller; the last holder's deleter takes it itself.
    std::shared_ptr<JobArena> hold(JobArena* arena) {
        ++arena->groups_;
        return {arena, [this](JobArena* held) {
                    Owned unused;
                    std::lock_guard lock(mutex);
                    --held->groups_;
                    unused = take_if_unused(held);
                }};
    }
};

namespace {

// Forks between the process that loaded this and this one. Relaxed: it changes in the child of a
// fork, before that has a second thread.
std::atomic<std::uint64_t> g_forks{0};

ArenaRegistry& registry() {
    // Never destroyed: tensors in static objects are freed after every static destructor of ours.
    static auto* const instance = new ArenaRegistry;
    return *instance;
}

// A child gets a consistent heap and free mutexes, whatever other threads of its parent were at.
void watch_forks() {
    static std::once_flag once;
    std::call_once(once, [] {
        // Taken before the fork and released on both sides after it, in the other order. Locks that
        // the child could not release would stop it at its first tensor.
        pthread_atfork(
            [] {
                registry().opening.lock();
                registry().mutex.lock();
            },
            [] {
                registry().mutex.unlock();
                registry().opening.unlock();
            },
            [] {
                g_forks.fetch_add(1, std::memory_order_relaxed);
                registry().mutex.unlock();
                registry().opening.unlock();
            });
    });
}

}  // namespace

JobArena::JobArena(std::string name)
    : name_(std::move(name)), forks_(g_forks.load(std::memory_order_relaxed)) {}

// A DataLoader worker, say, shares the mapping but not the session, and its copy of the heap's
// records diverges from its parent's.
bool JobArena::is_mine() const {
    return forks_ == g_forks.load(std::memory_order_relaxed);
}

void JobArena::attach(const std::string& socket, std::uint64_t bytes) {
    fabricshm_session_options options{};
    options.struct_size = sizeof(options);
    options.socket = socket.empty() ? nullptr : socket.c_str();
    options.timeout_ms = 300'000;  // a large arena on a busy machine; no daemon is known at once
    check(fabricshm_session_open(&options, &session_),
          "open a session with fabricd (is it running? fabricrun starts one)");
    check(fabricshm_arena_open(session_, name_.c_str(), bytes, 0, &arena_), "open the job's arena");
    base_ = static_cast<const char*>(fabricshm_arena_base(arena_));
    end_ = base_ + fabricshm_arena_bytes(arena_);
}

void JobArena::attach_device(int device) {
    const std::lock_guard lock(device_mutex_);
    if (device_users_ == 0) {
        check(fabricshm_cuda_attach(arena_, device),
              "put the job's arena into the address space of cuda:" + std::to_string(device));
        device_ = device;
    }
    TORCH_CHECK(
        device_ == device, "fabricshm: the process groups of a process share an arena, and ",
        "it is on cuda:", device_, ": tensors on cuda:", device, " need a process of their own");
    ++device_users_;
}

void JobArena::detach_device() noexcept {
    const std::lock_guard lock(device_mutex_);
    // Where a group is still being left the arena stays attached until it is closed.
    if (--device_users_ == 0) fabricshm_cuda_detach(arena_);
}

JobArena::~JobArena() {
    if (!is_mine()) return;
    if (arena_ != nullptr) fabricshm_arena_close(arena_);
    fabricshm_session_close(session_);
}

std::shared_ptr<JobArena> JobArena::open(const std::string& name, const std::string& socket,
                                         std::uint64_t bytes) {
    ArenaRegistry& all = registry();
    watch_forks();
    std::lock_guard one_at_a_time(all.opening);
    {
        std::lock_guard lock(all.mutex);
        // One arena for all groups of a job, so that a tensor is zero copy for each of them.
        for (const auto& arena : all.arenas) {
            if (arena->name_ == name && arena->is_mine()) return all.hold(arena.get());
        }
    }
    std::unique_ptr<JobArena> opened(new JobArena(name));
    opened->attach(socket, bytes);
    std::lock_guard lock(all.mutex);
    all.arenas.push_back(std::move(opened));
    return all.hold(all.arenas.back().get());
}

std::string JobArena::current_name() {
    ArenaRegistry& all = registry();
    std::lock_guard lock(all.mutex);
    const JobArena* newest = all.newest_in_use();
    return newest == nullptr ? std::string() : newest->name_;
}

void* JobArena::allocate_block(std::uint64_t bytes) {
    ArenaRegistry& all = registry();
    JobArena* arena = nullptr;
    {
        std::lock_guard lock(all.mutex);
        arena = all.newest_in_use();
        if (arena == nullptr) return nullptr;
        // Counted before it is there: closing the arena in between would take the memory away.
        ++arena->blocks_;  // keeps it open while the mutex is not held
    }
    void* block = fabricshm_alloc(arena->arena_, bytes);
    if (block == nullptr) {
        std::unique_ptr<JobArena> unused;
        std::lock_guard lock(all.mutex);
        --arena->blocks_;
        unused = all.take_if_unused(arena);
    }
    return block;
}

bool JobArena::free_block(void* block) noexcept {
    ArenaRegistry& all = registry();
    std::unique_ptr<JobArena> unused;
    std::lock_guard lock(all.mutex);
    JobArena* arena = all.find(block);
    if (arena == nullptr) return false;
    // The child's copy of the records is not the parent's: nothing is given back, and the parent's
    // tensor stays.
    if (!arena->is_mine()) return true;
    fabricshm_free(arena->arena_, block);
    --arena->blocks_;
    unused = all.take_if_unused(arena);
    return true;
}

bool JobArena::contains(const void* address) noexcept {
    ArenaRegistry& all = registry();
    std::lock_guard lock(all.mutex);
    return all.find(address) != nullptr;
}

}  // namespace fabricshm::torch_backend
