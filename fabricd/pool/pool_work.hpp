// PoolWork: what the control thread leaves to another one, since it takes long.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fabricd/pool/ids.hpp"
#include "libfabricshm/machine/pool_backend.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// Work on the pool that takes long (about 0.3 s/GiB), done elsewhere; the results come back
/// through arena_made(), arena_adopted() and arena_grown(). Requests are served in order.
class PoolWork {
  public:
    virtual ~PoolWork() = default;
    /// Before any other work: `committed` bytes of an arena that the journal knows count as used
    /// until it is adopted or destroyed.
    virtual void expect(ArenaId arena, Bytes committed) { (void)arena, (void)committed; }
    virtual void create(ArenaId arena, const std::string& name, std::uint32_t uid, Bytes bytes) = 0;
    /// The arena's last `uncommitted` bytes have no pages.
    virtual void adopt(ArenaId arena, Bytes bytes, Bytes uncommitted,
                       fabricshm::PresentedFiles presented) = 0;
    /// Commits the first `to` bytes, the next part of what will come to `need`.
    virtual void grow(ArenaId arena, Bytes to, Bytes need) = 0;
    /// The pages from `to` on go back to the pool; the answer is arena_grown(). Behind all that
    /// was asked of the arena before.
    virtual void shrink(ArenaId arena, Bytes to) = 0;
    virtual void destroy(ArenaId arena) noexcept = 0;
    /// After that: what was recorded of it, whose end takes long with thousands of regions.
    virtual void forget(ArenaId arena, std::shared_ptr<void> records) noexcept = 0;
    /// Of the last work that was done: for the text of a refusal.
    virtual fabricshm::PoolTotals totals() const { return {}; }
};

}  // namespace fabricd
