#include "libfabricshm/client/arena_heap.hpp"

#include <algorithm>
#include <utility>

namespace fabricshm {

ArenaHeap::ArenaHeap(std::unique_ptr<RegionSource> source, Bytes arena_bytes)
    : source_(std::move(source)),
      next_piece_(std::clamp(round_up(arena_bytes / 64, 4096), kPieceLeast, kPieceMost)) {}

Result<std::byte*> ArenaHeap::allocate(Bytes bytes) {
    // No lock of the heap is held while the daemon is asked: others go on allocating.
    if (bytes > kBigBlock) return allocate_big(bytes);
    if (std::byte* block = from_pieces(bytes); block != nullptr) return block;
    // Only who finds no room waits here; a round trip under mutex_ would stop everybody.
    const std::lock_guard growing(growing_);
    // While this thread waited another one may have fetched a region.
    if (std::byte* block = from_pieces(bytes); block != nullptr) return block;
    FABRIC_TRY_VOID(grow(bytes));
    if (std::byte* block = from_pieces(bytes); block != nullptr) return block;
    // Other threads were faster in using up the new region. Rare; the caller may try again.
    return Error{Errc::kNoMemory, 0, "allocate"};
}

Result<std::byte*> ArenaHeap::allocate_big(Bytes bytes) {
    FABRIC_TRY(const HeapRegion region, source_->take(bytes));
    const std::lock_guard lock(mutex_);
    big_[region.base] = region.id;
    return region.base;
}

// The newest region is as likely to have a hole as any other; there are few.
std::byte* ArenaHeap::from_pieces(Bytes bytes) noexcept {
    const std::lock_guard lock(mutex_);
    for (auto& [base, piece] : pieces_) {
        if (std::byte* block = piece->heap.allocate(bytes); block != nullptr) return block;
    }
    return nullptr;
}

// Asks for a whole piece, and for half as much each time the arena is too full for it.
Result<void> ArenaHeap::grow(Bytes bytes) {
    // With what the heap itself needs, so that the block fits into an empty piece.
    const Bytes least = round_up(
        std::max(bytes + Heap::kBlockOverhead + Heap::kHeapOverhead, 2 * Heap::kHeapOverhead),
        4096);
    Bytes wanted = std::max(next_piece_, least);
    auto region = source_->take(wanted);
    while (!region.ok() && region.error().code == Errc::kNoMemory && wanted > least) {
        wanted = std::max(wanted / 2, least);
        region = source_->take(wanted);
    }
    if (!region.ok()) return region.error();
    // Twice as much next time: who asks often gets there in a few steps.
    next_piece_ = std::min(2 * next_piece_, kPieceMost);
    auto piece = std::make_unique<Piece>(region.value());
    const std::lock_guard lock(mutex_);
    pieces_[region->base] = std::move(piece);
    return {};
}

ArenaHeap::Pieces::iterator ArenaHeap::piece_of(const std::byte* block) noexcept {
    auto after = pieces_.upper_bound(const_cast<std::byte*>(block));
    // By address: the piece that begins at or before the block, if the block is in it.
    if (after == pieces_.begin()) return pieces_.end();
    --after;
    return after->second->heap.holds(block) ? after : pieces_.end();
}

bool ArenaHeap::release(std::byte* block) noexcept {
    std::uint64_t emptied = 0;
    {
        const std::lock_guard lock(mutex_);
        if (const auto big = big_.find(block); big != big_.end()) {
            emptied = big->second;
            big_.erase(big);
        } else {
            const auto piece = piece_of(block);
            if (piece == pieces_.end()) return false;
            piece->second->heap.release(block);
            // The last one stays: a program that frees and allocates in turn needs no daemon.
            if (piece->second->heap.empty() && pieces_.size() > 1) {
                emptied = piece->second->id;
                pieces_.erase(piece);
            }
        }
    }
    // Outside of the lock, since it may write to a socket.
    if (emptied != 0) source_->give_back(emptied);
    return true;
}

}  // namespace fabricshm
