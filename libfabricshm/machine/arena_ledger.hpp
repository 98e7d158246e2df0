// ArenaLedger: what the arena files of one backend are and hold. Shared by emu and numa.

#pragma once

#include <cstdint>
#include <unordered_map>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/machine/pool_backend.hpp"

namespace fabricshm {

/// Counts what arenas have committed against a capacity and keeps a descriptor of each, so that
/// destroy() gives the memory back at once. Used by the backend's thread only.
class ArenaLedger {
  public:
    explicit ArenaLedger(Bytes capacity) : capacity_(capacity) {}

    /// kNoMemory when `bytes` more do not fit into what is left.
    Result<void> check_room(Bytes bytes) const;

    /// An arena of before a restart: what it has committed is used, until it is entered or dropped.
    void expect(std::uint64_t arena_id, Bytes committed);

    /// Enters the arena with what it has committed; keeps a duplicate of `piece.fd` and hands
    /// `piece` on.
    Result<PoolPiece> enter(std::uint64_t arena_id, PoolPiece piece);

    struct Held {
        Fd fd;
        Bytes bytes = 0;
        Bytes committed = 0;
    };
    /// nullptr for an id that is not held.
    const Held* find(std::uint64_t arena_id) const;
    /// The arena has committed its first `committed` bytes now.
    void grown(std::uint64_t arena_id, Bytes committed);

    /// The pages from `committed` on are gone.
    void shrunk(std::uint64_t arena_id, Bytes committed);

    /// Empties the file and forgets it. Idempotent.
    void drop(std::uint64_t arena_id) noexcept;

    Bytes capacity() const noexcept { return capacity_; }
    PoolTotals totals() const noexcept { return {capacity_, used_}; }

  private:
    /// What is used is what all of them, here or expected, have committed. A pass over them: for
    /// FABRIC_DCHECK.
    bool adds_up() const noexcept;

    /// Its bytes are counted as the arena's own from now on, or no longer.
    void forget_expected(std::uint64_t arena_id) noexcept;

    Bytes capacity_;
    Bytes used_ = 0;  // may pass capacity_ after a restart: those pages exist already
    std::unordered_map<std::uint64_t, Held> held_;
    std::unordered_map<std::uint64_t, Bytes> expected_;  // not yet here; none is held, too
};

}  // namespace fabricshm
