// ArenaLedger: what the arena files of one backend are and hold. Shared by emu and numa.

#pragma once

#include <cstdint>
#include <unordered_map>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/machine/pool_backend.hpp"

namespace fabricshm {

/// Counts arenas against a capacity and keeps a descriptor of each, so that destroy() gives the
/// memory back at once. Control thread only.
class ArenaLedger {
  public:
    explicit ArenaLedger(Bytes capacity) : capacity_(capacity) {}

    /// kExists for an id that is held, kNoMemory when `bytes` do not fit into what is left.
    Result<void> check_room(std::uint64_t arena_id, Bytes bytes) const;

    /// Enters the arena; keeps a duplicate of `piece.fd` and hands `piece` on.
    Result<PoolPiece> enter(std::uint64_t arena_id, PoolPiece piece);

    /// Empties the file and forgets it. Idempotent.
    void drop(std::uint64_t arena_id) noexcept;

    bool holds(std::uint64_t arena_id) const { return held_.count(arena_id) != 0; }
    PoolTotals totals() const noexcept { return {capacity_, used_}; }

  private:
    struct Held {
        Fd fd;
        Bytes bytes = 0;
    };

    Bytes capacity_;
    Bytes used_ = 0;  // may pass capacity_ after an adoption: those pages exist already
    std::unordered_map<std::uint64_t, Held> held_;
};

}  // namespace fabricshm
