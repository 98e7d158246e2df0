// Takes all memory of a pool that no other process has, for as long as it lives.

#pragma once

#include <fabricshm/fabricshm.h>

#include <cstdint>
#include <string>

namespace emu {

class PoolFiller {
  public:
    /// Attaches to the daemon at `socket`, opens arenas until none of the least size (2 MiB) is
    /// granted any more, and fills each with regions. `taken()` is 0 when that did not work.
    explicit PoolFiller(const std::string& socket);
    ~PoolFiller() { fabricshm_session_close(session_); }
    PoolFiller(const PoolFiller&) = delete;
    PoolFiller& operator=(const PoolFiller&) = delete;

    std::uint64_t taken() const noexcept { return taken_; }

  private:
    fabricshm_session* session_ = nullptr;
    std::uint64_t taken_ = 0;
};

}  // namespace emu
