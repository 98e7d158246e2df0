#include "libfabricshm/client/arena_heap.hpp"

#include <algorithm>
#include <utility>

namespace fabricshm {

ArenaHeap::ArenaHeap(std::unique_ptr<RegionSource> source, Bytes arena_bytes)
    : source_(std::move(source)),
      next_piece_(std::clamp(round_up(arena_bytes / 64, kPageBytes), kMinPiece, kMaxPiece)) {}

Result<std::byte*> ArenaHeap::allocate(Bytes bytes) {
    // No lock of the heap is held while the daemon is asked: others go on allocating.
    if (bytes > kBigBlock) return allocate_big(bytes);
    if (std::byte* block = from_pieces(bytes); block != nullptr) return block;
    // Only a thread that finds no room waits here; a round trip under mutex_ would stop all
    // threads.
    const std::lock_guard growing(growing_);
    // While this thread waited another one may have fetched a region.
    if (std::byte* block = from_pieces(bytes); block != nullptr) return block;
    return from_new_piece(bytes);
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
Result<std::byte*> ArenaHeap::from_new_piece(Bytes bytes) {
    const Bytes least = round_up(std::max<Bytes>(bytes, 1), kPageBytes);
    Bytes wanted = std::max(next_piece_, least);
    auto region = source_->take(wanted);
    while (!region.ok() && region.error().code == Errc::kNoMemory && wanted > least) {
        wanted = std::max(wanted / 2, least);
        region = source_->take(wanted);
    }
    if (!region.ok()) return region.error();
    // Twice as much next time: a program that asks often gets there in a few steps.
    next_piece_ = std::min(2 * next_piece_, kMaxPiece);
    auto piece = std::make_unique<Piece>(region.value());
    // Before other threads can find the piece and use it up.
    std::byte* block = piece->heap.allocate(bytes);
    if (block == nullptr) {
        source_->give_back(region->id);
        return Error{Errc::kNoMemory, 0, "allocate: memory of this process"};
    }
    const std::lock_guard lock(mutex_);
    pieces_[region->base] = std::move(piece);
    return block;
}

bool ArenaHeap::release(std::byte* block) noexcept {
    std::uint64_t emptied = 0;
    {
        const std::lock_guard lock(mutex_);
        if (const auto big = big_.find(block); big != big_.end()) {
            emptied = big->second;
            big_.erase(big);
        } else {
            // By address: the piece that begins at or before the block.
            auto piece = pieces_.upper_bound(block);
            if (piece == pieces_.begin()) return false;
            --piece;
            if (!piece->second->heap.release(block)) return false;
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
