// CacheEnd: how much of its arena a cache uses, from the start. What lies behind the end goes to
// other arenas and comes back. docs/data.md.

#pragma once

#include <vector>

#include "fabricd/data/blocks/chunk_cache.hpp"

namespace fabricd {

/// A view of a cache, which is borrowed; on its thread. Costs nothing to make.
class CacheEnd {
  public:
    explicit CacheEnd(ChunkCache& cache) : cache_(cache) {}

    /// Behind this no byte is used.
    Bytes end() const noexcept { return cache_.end_; }

    /// No byte from `end` on: before format() or take_up(), which forgets what is there.
    void begin_with(Bytes end);
    /// Empties what lies from `end` on, or as much of it as readers, writers and silos have let go
    /// of: where the bytes begin that are used no more, and stay so. What is read most stays, moved
    /// to the front, 64 MiB at most in a call. Call again until it is `end`.
    Bytes shrink_to(Bytes end);
    /// Uses the bytes up to `end`, also those that it was asked to empty and has not given.
    void grow_to(Bytes end);

  private:
    std::vector<std::uint64_t> lines_behind(Bytes end) const;
    void withhold(Bytes end);
    void check_unused(Bytes end) const;

    ChunkCache& cache_;
};

}  // namespace fabricd
