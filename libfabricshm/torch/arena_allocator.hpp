// A CPU allocator for torch that puts large tensors into the job's arena, where peers read them
// without a copy.

#pragma once

#include <cstdint>

namespace fabricshm::torch_backend {

enum class AllocatorMode {
    kOff,     // never
    kScoped,  // on threads that are inside an ArenaScope: DDP's buckets, and what users ask for
    kAll      // every large tensor while a process group is alive
};

/// Registers it with c10, once per process and for good: torch cannot take an allocator back. It
/// passes everything on to the allocator that was there before, except what `mode` selects.
void install_arena_allocator();

/// Takes effect for tensors made from now on; those that are there stay where they are. Any thread.
void set_allocator_mode(AllocatorMode mode);

/// Tensors below this go to the ordinary heap: copying them costs less than arena fragmentation.
void set_allocator_threshold(std::uint64_t bytes);

/// While alive, large tensors made on this thread go to the arena (unless the mode is kOff).
class ArenaScope {
  public:
    /// Scopes may nest. On the thread that made it.
    ArenaScope();
    ~ArenaScope();
    ArenaScope(const ArenaScope&) = delete;
    ArenaScope& operator=(const ArenaScope&) = delete;
};

}  // namespace fabricshm::torch_backend
