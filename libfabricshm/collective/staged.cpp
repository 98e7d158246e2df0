// Staged allreduce: buffers outside the arena go through the slots in pieces. Each rank copies a
// piece into its slot, the ranks reduce the slots with an inner algorithm, and each copies the
// result out. `direct` leaves the result in rank 0's slot alone: a part of it is read only by the
// rank that overwrites it.

#include <algorithm>

#include "kernels/copy.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/operation.hpp"

namespace fabricshm {

namespace {

Result<void> reduce_slots(Operation& operation, Algorithm inner, Bytes bytes) {
    GroupState& group = operation.group;
    Pointers slots{};
    Pointers results{};
    for (int rank = 0; rank < operation.world(); ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        slots[at] = group.slot(rank, group.turn);
        results[at] = inner == Algorithm::kDirect ? group.slot(0, group.turn) : slots[at];
    }
    const AllreduceView view{slots, results, bytes, false};
    switch (inner) {
        case Algorithm::kRing:
            return allreduce_ring(operation, view);
        case Algorithm::kHost:
            return allreduce_host(operation, view);
        default:
            return allreduce_direct(operation, view);
    }
}

}  // namespace

Result<void> run_staged(Operation& operation, Algorithm inner) {
    GroupState& group = operation.group;
    const Call& call = operation.call;
    const Bytes total = operation.parts.bytes(0);
    operation.choose_stores(StorePlace::kSlots, total);
    const Pieces pieces = cut_pieces(total, 1, group.layout.slot_bytes, group.tuning.piece_bytes);
    for (std::uint64_t piece = 0; piece < pieces.count; ++piece) {
        // The slot of this turn was last read two turns ago; see flat.cpp.
        FABRIC_TRY_VOID(operation.meeting().wait_all(group.last_turn, call.deadline));
        const Bytes from = piece * pieces.stride;
        const Bytes bytes = std::min(pieces.stride, total - from);
        std::byte* slot = group.slot(operation.rank(), group.turn);
        kernels::copy(slot, call.input + from, bytes, operation.past_cache);
        operation.meeting().view().publish(TouchPoint::kStagedPost, slot, bytes);
        const std::uint64_t posted = operation.next;
        FAULT_POINT("staged.before_post");
        FABRIC_TRY_VOID(operation.meet());
        FABRIC_TRY_VOID(reduce_slots(operation, inner, bytes));
        const int holder = inner == Algorithm::kDirect ? 0 : operation.rank();
        kernels::copy(call.output + from, group.slot(holder, group.turn), bytes,
                      operation.output_past_cache(total));
        FAULT_POINT("staged.copied");
        group.last_turn = posted;
        ++group.turn;
    }
    return {};
}

}  // namespace fabricshm
