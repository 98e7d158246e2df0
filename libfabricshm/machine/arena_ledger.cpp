#include "libfabricshm/machine/arena_ledger.hpp"

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/machine/arena_file.hpp"

namespace fabricshm {

Result<void> ArenaLedger::check_room(Bytes bytes) const {
    // Adoptions are not refused, so there may be more than fits.
    const Bytes left = capacity_ > used_ ? capacity_ - used_ : 0;
    if (bytes > left) return Error{Errc::kNoMemory, 0, "commit arena: pool is full"};
    return {};
}

Result<PoolPiece> ArenaLedger::enter(std::uint64_t arena_id, PoolPiece piece) {
    FABRIC_CHECK(piece.uncommitted <= piece.bytes);
    FABRIC_CHECK(find(arena_id) == nullptr);  // counted twice, it would be given back once
    FABRIC_TRY(Fd copy, piece.fd.duplicate());
    const Bytes committed = piece.bytes - piece.uncommitted;
    used_ += committed;
    held_[arena_id] = Held{std::move(copy), piece.bytes, committed};
    FABRIC_DCHECK(adds_up());
    return piece;
}

const ArenaLedger::Held* ArenaLedger::find(std::uint64_t arena_id) const {
    const auto found = held_.find(arena_id);
    return found == held_.end() ? nullptr : &found->second;
}

void ArenaLedger::grown(std::uint64_t arena_id, Bytes committed) {
    const auto found = held_.find(arena_id);
    FABRIC_CHECK(found != held_.end());
    Held& held = found->second;
    FABRIC_CHECK(committed >= held.committed && committed <= held.bytes);
    used_ += committed - held.committed;
    held.committed = committed;
    FABRIC_DCHECK(adds_up());
}

bool ArenaLedger::adds_up() const noexcept {
    Bytes sum = 0;
    for (const auto& [id, held] : held_) sum += held.committed;
    return sum == used_;
}

void ArenaLedger::drop(std::uint64_t arena_id) noexcept {
    const auto found = held_.find(arena_id);
    if (found == held_.end()) return;
    // Clients may map it on: dropping the descriptor alone would give nothing back.
    empty_arena_file(found->second.fd, 0, found->second.bytes);
    FABRIC_CHECK(used_ >= found->second.committed);
    used_ -= found->second.committed;
    held_.erase(found);
    FABRIC_DCHECK(adds_up());
}

}  // namespace fabricshm
