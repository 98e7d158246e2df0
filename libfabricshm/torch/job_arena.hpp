// The session and arena that the process groups of one job share in this process, and the tensor
// memory inside it.

#pragma once

#include <fabricshm/fabricshm.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace fabricshm::torch_backend {

/// One attached arena. Process groups hold it by shared_ptr, tensors by their blocks. It is closed
/// when both are gone, so a gradient may outlive destroy_process_group(). Thread-safe.
class JobArena {
  public:
    /// The arena `name`: the one this process has open, or a newly opened one. Raises when fabricd
    /// cannot be reached or refuses. `socket` empty and `bytes` 0: the library's defaults.
    static std::shared_ptr<JobArena> open(const std::string& name, const std::string& socket,
                                          std::uint64_t bytes);
    /// Name of the newest arena that a process group holds; empty when there is none.
    static std::string current_name();

    /// A block for a tensor from the newest arena that a process group holds. Null: there is none
    /// (those of the parent of a fork do not count), or it is full.
    static void* allocate_block(std::uint64_t bytes);
    /// Gives a block back. False when `block` lies in no arena. A block of the parent's arena stays
    /// the parent's.
    static bool free_block(void* block) noexcept;
    /// Whether `address` lies in an arena of this process.
    static bool contains(const void* address) noexcept;

    ~JobArena();
    JobArena(const JobArena&) = delete;
    JobArena& operator=(const JobArena&) = delete;

    /// Puts the arena into the address space of a CUDA device, for the first of those that need
    /// it there; the others are of the same device. Raises when it can't be. May take seconds.
    void attach_device(int device);
    /// For each attach_device(); the last one takes the arena out again, unless a group is there.
    void detach_device() noexcept;

    fabricshm_arena* handle() const { return arena_; }
    fabricshm_session* session() const { return session_; }
    const std::string& name() const { return name_; }

  private:
    friend struct ArenaRegistry;
    explicit JobArena(std::string name);

    void attach(const std::string& socket, std::uint64_t bytes);
    bool is_mine() const;
    bool holds(const void* address) const { return address >= base_ && address < end_; }

    std::string name_;
    fabricshm_session* session_ = nullptr;
    fabricshm_arena* arena_ = nullptr;
    const char* base_ = nullptr;
    const char* end_ = nullptr;
    std::uint64_t forks_;       // how many forks deep it was opened: a child's copy is not its own
    std::uint64_t groups_ = 0;  // process groups and
    std::uint64_t blocks_ = 0;  // tensors that keep it open; both under the registry's mutex
    std::mutex device_mutex_;
    int device_ = 0;  // where it is attached
    int device_users_ = 0;
};

}  // namespace fabricshm::torch_backend
