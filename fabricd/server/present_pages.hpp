// PresentPages: which pieces of arenas can be touched without a fault. docs/migration.md.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include "fabricd/pool/arena_memory.hpp"

namespace fabricd {

/// Remembers what was made present, since asking the kernel again costs as much as the copy itself:
/// it walks the pages one by one (some 0.1 us each). Whether all of them are still there costs a
/// sixtieth of that. For one thread.
class PresentPages {
  public:
    /// ArenaSpan::make_present(), unless the same piece was made present before, through the same
    /// mapping, and no client has punched a hole into it since. A page that can't be touched, lost
    /// or out of memory, is kPoisoned: it would raise the same signal.
    Result<void> ensure(const ArenaSpan& span, Bytes offset, Bytes bytes);

  private:
    using Pieces = std::unordered_map<const std::byte*, Bytes>;  // bytes by where they begin
    Pieces& pieces_of(const ArenaSpan& span);

    // By the mapping. A weak reference: an arena that was dropped is not kept by what is known.
    std::map<std::weak_ptr<const void>, Pieces, std::owner_less<>> known_;
};

}  // namespace fabricd
