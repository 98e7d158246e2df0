#include "libfabricshm/torch/arena_allocator.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <torch/version.h>

#include <atomic>
#include <mutex>

#include "libfabricshm/torch/job_arena.hpp"

namespace fabricshm::torch_backend {
namespace {

// Relaxed throughout: they choose a place for memory, and guard nothing.
std::atomic<AllocatorMode> g_mode{AllocatorMode::kScoped};
std::atomic<std::uint64_t> g_threshold{64 * 1024};
// By thread: a scope around the making of DDP's buckets must not catch what other threads allocate.
thread_local int t_scopes = 0;

c10::Allocator* g_ordinary = nullptr;  // written once, before the allocator below is registered

// The cheapest question first: nearly all tensors are small.
bool wants_arena(std::size_t bytes) {
    if (bytes < g_threshold.load(std::memory_order_relaxed)) return false;
    const AllocatorMode mode = g_mode.load(std::memory_order_relaxed);
    return mode == AllocatorMode::kAll || (mode == AllocatorMode::kScoped && t_scopes > 0);
}

// c10 frees through a plain function: where a block came from has to be found by its address.
void free_in_arena(void* block) {
    JobArena::free_block(block);
}

// For raw_deallocate(), which does not know where its block came from.
// An address in no arena is the other allocator's.
void free_anywhere(void* block) {
    if (block == nullptr || JobArena::free_block(block)) return;
    g_ordinary->raw_deallocate(block);
}

// Two signatures, since torch 2.3 took the const away.
class ArenaAllocator final : public c10::Allocator {
  public:
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
    c10::DataPtr allocate(std::size_t bytes) override {
        return place(bytes);
    }
    void copy_data(void* to, const void* from, std::size_t bytes) const override {
        default_copy_data(to, from, bytes);
    }
#else
    c10::DataPtr allocate(std::size_t bytes) const override {
        return place(bytes);
    }
#endif
    c10::DeleterFnPtr raw_deleter() const override {
        return &free_anywhere;
    }

  private:
    static c10::DataPtr place(std::size_t bytes) {
        if (wants_arena(bytes)) {
            void* block = JobArena::allocate_block(bytes);
            // An arena that is full is no error: the tensor goes to the heap, and its operations
            // are staged.
            if (block != nullptr) return {block, block, &free_in_arena, c10::Device(c10::kCPU)};
        }
        return g_ordinary->allocate(bytes);
    }
};

}  // namespace

void install_arena_allocator() {
    static std::once_flag once;
    std::call_once(once, [] {
        g_ordinary = c10::GetCPUAllocator();
        // Never freed: tensors may outlive every static object.
        c10::SetAllocator(c10::kCPU, new ArenaAllocator, /*priority=*/100);
    });
}

void set_allocator_mode(AllocatorMode mode) {
    g_mode.store(mode, std::memory_order_relaxed);
}

void set_allocator_threshold(std::uint64_t bytes) {
    g_threshold.store(bytes, std::memory_order_relaxed);
}

ArenaScope::ArenaScope() {
    ++t_scopes;
}

ArenaScope::~ArenaScope() {
    --t_scopes;
}

}  // namespace fabricshm::torch_backend
