#include "libfabricshm/machine/arena_ledger.hpp"

#include "libfabricshm/machine/arena_file.hpp"

namespace fabricshm {

Result<void> ArenaLedger::check_room(std::uint64_t arena_id, Bytes bytes) const {
    if (holds(arena_id)) return Error{Errc::kExists, 0, "create arena"};
    // Adoptions are not refused, so there may be more than fits.
    const Bytes left = capacity_ > used_ ? capacity_ - used_ : 0;
    if (bytes > left) return Error{Errc::kNoMemory, 0, "create arena: pool is full"};
    return {};
}

Result<PoolPiece> ArenaLedger::enter(std::uint64_t arena_id, PoolPiece piece) {
    FABRIC_TRY(Fd copy, piece.fd.duplicate());
    used_ += piece.bytes;
    held_[arena_id] = Held{std::move(copy), piece.bytes};
    return piece;
}

void ArenaLedger::drop(std::uint64_t arena_id) noexcept {
    const auto found = held_.find(arena_id);
    if (found == held_.end()) return;
    // Clients may map it on: dropping the descriptor alone would give nothing back.
    empty_arena_file(found->second.fd, found->second.bytes);
    used_ -= found->second.bytes;
    held_.erase(found);
}

}  // namespace fabricshm
