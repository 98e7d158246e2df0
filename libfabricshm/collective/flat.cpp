// The flat engine: every rank posts its bytes in a slot where all can read them, waits for the
// posts it needs, and computes its own output from them. One barrier per post. Works with buffers
// anywhere.
//
// Posts alternate between two slots per rank, by turn. A rank raises its clock once per turn, when
// it has posted; so a clock at turn t says that its rank has finished reading turn t-1. A post at
// turn t goes where turn t-2 was: it may be written once all clocks have come to turn t-1.

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/operation.hpp"
#include "libfabricshm/collective/post.hpp"

namespace fabricshm {

namespace {

int sub_parts(const Operation& operation) noexcept {
    return posts_all_parts(operation.call.kind) ? operation.world() : 1;
}

// The largest part of all ranks decides, so that all cut alike.
Pieces pieces_of(const Operation& operation) noexcept {
    return cut_pieces(operation.largest_part, sub_parts(operation),
                      operation.group.layout.slot_bytes, operation.group.tuning.piece_bytes);
}

void choose_slot_stores(Operation& operation) noexcept {
    const auto parts = static_cast<Bytes>(sub_parts(operation));
    operation.choose_stores(StorePlace::kSlots, operation.largest_part * parts);
}

// Writes this rank's piece into its slot of this turn; its next step says that it is there.
void write_piece(Operation& operation, Bytes from, Bytes stride) {
    std::byte* place = operation.group.slot(operation.rank(), operation.group.turn);
    if (posts(operation, operation.rank())) write_post(operation, place, from, stride);
    operation.barrier().view().publish(TouchPoint::kSlot, place,
                                       post_bytes(operation, operation.rank(), from, stride));
    FAULT_POINT("slots.before_post");
}

}  // namespace

void post_first_piece(Operation& operation) {
    choose_slot_stores(operation);
    write_piece(operation, 0, pieces_of(operation).stride);
}

Result<void> run_slots(Operation& operation) {
    GroupState& group = operation.group;
    Barrier& barrier = operation.barrier();
    const Pieces pieces = pieces_of(operation);
    if (!operation.posted_early) {
        choose_slot_stores(operation);
        // Before the signature: a root does not wait in a broadcast, so a peer may still be
        // comparing the signature of the operation before the last one, which is in the same place.
        FABRIC_TRY_VOID(enter(operation));
        show_signature(operation);
    }

    Pointers posted{};
    for (std::uint64_t piece = 0; piece < pieces.count; ++piece) {
        const Bytes from = piece * pieces.stride;
        std::byte* place = group.slot(operation.rank(), group.turn);
        const bool early = piece == 0 && operation.posted_early;
        if (!early) {
            FABRIC_TRY_VOID(barrier.wait_all(group.last_turn, operation.call.deadline));
            write_piece(operation, from, pieces.stride);
        }
        const std::uint64_t at = early ? operation.arrival : operation.step();
        FAULT_POINT("slots.posted");
        for (int step = 0; step < operation.world(); ++step) {
            const int peer = (operation.rank() + step) % operation.world();
            const auto index = static_cast<std::size_t>(peer);
            posted[index] = group.slot(peer, group.turn);
            if (peer == operation.rank()) posted[index] = own_post(operation, place, from);
            if (peer == operation.rank() || !needs_post_of(operation, peer)) continue;
            FABRIC_TRY_VOID(barrier.wait(peer, at, operation.call.deadline));
            if (piece == 0) FABRIC_TRY_VOID(check_signature(operation, peer));
            acquire_post(operation, peer, posted[index], from, pieces.stride);
        }
        combine(operation, posted, from, pieces.stride, pieces.stride);
        group.last_turn = at;
        ++group.turn;
    }
    leave_unchecked(operation);
    return {};
}

}  // namespace fabricshm
