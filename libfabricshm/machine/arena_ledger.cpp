#include "libfabricshm/machine/arena_ledger.hpp"

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/machine/arena_file.hpp"

namespace fabricshm {

Result<void> ArenaLedger::check_room(Bytes bytes) const {
    // What was there before a restart is not refused, so there may be more than fits.
    const Bytes left = capacity_ > used_ ? capacity_ - used_ : 0;
    if (bytes > left) return Error{Errc::kNoMemory, 0, "commit arena: pool is full"};
    return {};
}

void ArenaLedger::expect(std::uint64_t arena_id, Bytes committed) {
    FABRIC_CHECK(find(arena_id) == nullptr);
    forget_expected(arena_id);
    expected_[arena_id] = committed;
    used_ += committed;
    FABRIC_DCHECK(adds_up());
}

void ArenaLedger::forget_expected(std::uint64_t arena_id) noexcept {
    const auto found = expected_.find(arena_id);
    if (found == expected_.end()) return;
    FABRIC_CHECK(used_ >= found->second);
    used_ -= found->second;
    expected_.erase(found);
}

Result<PoolPiece> ArenaLedger::enter(std::uint64_t arena_id, PoolPiece piece) {
    FABRIC_CHECK(piece.uncommitted <= piece.bytes);
    FABRIC_CHECK(find(arena_id) == nullptr);  // counted twice, it would be given back once
    FABRIC_TRY(Fd copy, piece.fd.duplicate());
    const Bytes committed = piece.bytes - piece.uncommitted;
    forget_expected(arena_id);
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

void ArenaLedger::shrunk(std::uint64_t arena_id, Bytes committed) {
    const auto found = held_.find(arena_id);
    FABRIC_CHECK(found != held_.end());
    Held& held = found->second;
    FABRIC_CHECK(committed <= held.committed && used_ >= held.committed - committed);
    used_ -= held.committed - committed;
    held.committed = committed;
    FABRIC_DCHECK(adds_up());
}

bool ArenaLedger::adds_up() const noexcept {
    Bytes sum = 0;
    for (const auto& [id, held] : held_) sum += held.committed;
    for (const auto& [id, committed] : expected_) sum += committed;
    return sum == used_;
}

void ArenaLedger::drop(std::uint64_t arena_id) noexcept {
    forget_expected(arena_id);
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
