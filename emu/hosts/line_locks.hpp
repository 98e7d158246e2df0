// LineLocks: makes the transfer of a cache line between an emulated host and the pool one step.

#pragma once

#include <atomic>
#include <cstdint>

#include "libfabricshm/base/units.hpp"

namespace emu {

using fabricshm::Bytes;

/// Locks for lines by their place in the pool, in memory that forked children share: make it before
/// the processes that use it. A line is 64 bytes and moves as a whole on real links; here it is
/// moved word by word, so no other process may move it meanwhile.
class LineLocks {
  public:
    LineLocks();
    ~LineLocks();
    LineLocks(const LineLocks&) = delete;
    LineLocks& operator=(const LineLocks&) = delete;

    /// The lock of the line at `line_offset` is this thread's while the guard lives.
    class Guard {
      public:
        Guard(LineLocks& locks, Bytes line_offset) noexcept;
        ~Guard();
        Guard(const Guard&) = delete;
        Guard& operator=(const Guard&) = delete;

      private:
        std::atomic<std::uint32_t>& word_;
    };

  private:
    std::atomic<std::uint32_t>* words_;
};

}  // namespace emu
