// HostCache: what one emulated host holds of a pool in its caches, line by line.
//
//   pool    the memory that all hosts share; one host's stores are not seen here by themselves
//   cache   what the ranks of this host load and store: every line they ever touched, or zeros, as
//           if it had been cached before the pool was first written
//   known   the same lines as they were when they last agreed with the pool: a line whose cache
//           differs from it is dirty
//
// Cache lines are moved whole, as on a real link: a dirty word carries the seven next to it along,
// so two hosts that write into one line lose words, here as there. A word that is stored with the
// value it already had is not noticed; publish() is given what was written and does not depend on
// it.

#pragma once

#include <cstddef>
#include <cstdint>

#include "emu/hosts/line_locks.hpp"
#include "libfabricshm/base/units.hpp"

namespace emu {

/// Borrows all memory. Any thread of the host, and any process that shares the memory, may call
/// everything at any time, also while other threads store into the lines.
class HostCache {
  public:
    /// `cache` and `known` hold zeros at first. All are page-aligned and have `bytes`.
    HostCache(std::byte* pool, std::byte* cache, std::byte* known, Bytes bytes,
              LineLocks& locks) noexcept
        : pool_(pool), cache_(cache), known_(known), bytes_(bytes), locks_(locks) {}

    /// The bytes were stored into the cache by this host: the pool gets them.
    void publish(Bytes offset, Bytes bytes) noexcept;

    /// Writes dirty lines of the range back, then fetches all of it from the pool.
    void acquire(Bytes offset, Bytes bytes) noexcept;

    /// What caches do unasked. Each handles the line that holds `offset`.
    void write_back_if_dirty(Bytes offset) noexcept;
    void fetch_if_clean(Bytes offset) noexcept;

    Bytes bytes() const noexcept { return bytes_; }
    std::byte* cache() const noexcept { return cache_; }

  private:
    std::byte* const pool_;
    std::byte* const cache_;
    std::byte* const known_;
    const Bytes bytes_;
    LineLocks& locks_;
};

}  // namespace emu
