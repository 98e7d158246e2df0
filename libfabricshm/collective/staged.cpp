// Staged allreduce: buffers outside the arena go through the slots in chunks. Of a chunk each rank
// owns a share (share_of()). It posts the others' shares in its slot, reduces its own one from its
// input and the peers' posts into its output and into its slot, and fetches the shares of the
// others from their slots. So a chunk's place in a slot holds posts, but at the rank's own share
// its result.
//
// Chunks overlap, with one barrier for each. In round k, for k = 0, 1, ...:
//
//   wait until all ranks have signalled round k - 1
//   post chunk k, reduce chunk k - 1, signal round k
//   fetch chunk k - 2
//
// The signal of round k says that posts of chunk k and results of chunk k - 1 are there, and that
// the rank has fetched chunk k - 3. While a signal travels, its rank fetches. Chunks take four
// places in turn, two in the slot of this turn and two in the other one: chunk k goes where chunk
// k - 4 was, which all ranks had fetched when they signalled round k - 1. (Three would do if all
// chunks were alike; but the last one may be shorter, and its posts fall on older results.)
//
// Where all buffers are outside the arena, ranks post chunk 0 before they arrive, and the arrival
// is the signal of round 0. As in flat.cpp, the slot of this turn was last read two turns ago.
//
// An operation of one or two chunks stays in the slot of its turn, so it ends without a signal of
// its last fetch: the next turn writes to the other slot. A longer one signals its last fetch, and
// the next turn waits for that (GroupState::last_turn).
//
// In place, a rank's input is overwritten by its own reductions and fetches only, chunk by chunk
// after it was posted: peers read posts and never an input.

#include <algorithm>

#include "kernels/copy.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/operation.hpp"

namespace fabricshm {

namespace {

class Staged {
  public:
    explicit Staged(Operation& operation)
        : operation_(operation),
          total_(operation.parts.bytes(0)),
          chunks_(cut_staged(total_, operation.group.layout.slot_bytes,
                             operation.group.tuning.piece_bytes)),
          own_past_cache_(operation.call.input != operation.call.output &&
                          operation.output_past_cache(total_)) {}

    std::uint64_t count() const noexcept { return chunks_.count; }

    void post(std::uint64_t chunk) const noexcept {
        const Bytes bytes = size_of(chunk);
        const Range mine = share_of(bytes, operation_.rank(), operation_.world());
        post_range(chunk, {0, mine.begin});
        post_range(chunk, {mine.end, bytes});
    }

    void reduce(std::uint64_t chunk) const noexcept {
        const Range mine = share_of(size_of(chunk), operation_.rank(), operation_.world());
        if (mine.size() == 0) return;
        const Visibility& view = operation_.barrier().view();
        std::array<const void*, kWorldMax> sources;
        for (int rank = 0; rank < operation_.world(); ++rank) {
            const std::byte* post = place(rank, chunk) + mine.begin;
            if (rank == operation_.rank()) post = input(chunk) + mine.begin;
            if (rank != operation_.rank()) {
                view.acquire(TouchPoint::kStagedRead, post, mine.size(), rank);
            }
            sources[static_cast<std::size_t>(rank)] = post;
        }
        std::byte* result = place(operation_.rank(), chunk) + mine.begin;
        void* own = output(chunk) + mine.begin;
        // What goes past the cache comes first.
        void* destinations[] = {result, own};
        if (own_past_cache_) std::swap(destinations[0], destinations[1]);
        kernels::ReduceJob job = reduce_job(operation_);
        job.sources = sources.data();
        job.destinations = destinations;
        job.destination_count = 2;
        job.count = mine.size() / kernels::size_of(job.type);
        job.streaming = own_past_cache_ || operation_.past_cache;
        job.cached_destinations = own_past_cache_ && operation_.past_cache ? 0 : 1;
        kernels::reduce(job);
        view.publish(TouchPoint::kStagedResult, result, mine.size());
    }

    void fetch(std::uint64_t chunk) const noexcept {
        // Starts behind this rank, so that not all ranks read the same slot first.
        for (int step = 1; step < operation_.world(); ++step) {
            const int peer = (operation_.rank() + step) % operation_.world();
            const Range theirs = share_of(size_of(chunk), peer, operation_.world());
            if (theirs.size() == 0) continue;
            const std::byte* result = place(peer, chunk) + theirs.begin;
            operation_.barrier().view().acquire(TouchPoint::kStagedResultRead, result,
                                                theirs.size(), peer);
            kernels::copy(output(chunk) + theirs.begin, result, theirs.size(), own_past_cache_);
        }
    }

  private:
    Bytes size_of(std::uint64_t chunk) const noexcept {
        return std::min(chunks_.stride, total_ - chunk * chunks_.stride);
    }
    const std::byte* input(std::uint64_t chunk) const noexcept {
        return operation_.call.input + chunk * chunks_.stride;
    }
    std::byte* output(std::uint64_t chunk) const noexcept {
        return operation_.call.output + chunk * chunks_.stride;
    }
    std::byte* place(int rank, std::uint64_t chunk) const noexcept {
        const GroupState& group = operation_.group;
        return group.slot(rank, group.turn + chunk / 2) + chunk % 2 * chunks_.stride;
    }
    void post_range(std::uint64_t chunk, Range range) const noexcept {
        if (range.size() == 0) return;
        std::byte* to = place(operation_.rank(), chunk) + range.begin;
        kernels::copy(to, input(chunk) + range.begin, range.size(), operation_.past_cache);
        operation_.barrier().view().publish(TouchPoint::kStagedPost, to, range.size());
    }

    Operation& operation_;
    Bytes total_;
    Pieces chunks_;
    bool own_past_cache_;  // what only this rank reads
};

}  // namespace

void post_first_chunk(Operation& operation) {
    operation.choose_stores(StorePlace::kSlots, operation.parts.bytes(0));
    Staged(operation).post(0);
    FAULT_POINT("staged.before_post");
}

Result<void> run_staged(Operation& operation) {
    GroupState& group = operation.group;
    if (!operation.posted_early) post_first_chunk(operation);
    const Staged staged(operation);
    const std::uint64_t count = staged.count();
    std::uint64_t signalled = operation.posted_early ? operation.arrival : operation.step();
    for (std::uint64_t round = 1; round <= count + 1; ++round) {
        FABRIC_TRY_VOID(operation.barrier().wait_all(signalled, operation.call.deadline));
        if (round < count) staged.post(round);
        if (round <= count) {
            staged.reduce(round - 1);
            FAULT_POINT("staged.reduced");
            signalled = operation.step();
        }
        if (round >= 2) staged.fetch(round - 2);
        FAULT_POINT("staged.copied");
    }
    group.last_turn = count > kStagedPerSlot ? operation.step() : signalled;
    ++group.turn;
    return {};
}

Result<void> run_in_slots(Operation& operation, Algorithm inner) {
    GroupState& group = operation.group;
    const Call& call = operation.call;
    const Bytes total = operation.parts.bytes(0);
    operation.choose_stores(StorePlace::kSlots, total);
    const Pieces pieces = cut_pieces(total, 1, group.layout.slot_bytes, group.tuning.piece_bytes);
    for (std::uint64_t piece = 0; piece < pieces.count; ++piece) {
        // The slot of this turn was last read two turns ago; see flat.cpp.
        FABRIC_TRY_VOID(operation.barrier().wait_all(group.last_turn, call.deadline));
        const Bytes from = piece * pieces.stride;
        const Bytes bytes = std::min(pieces.stride, total - from);
        std::byte* slot = group.slot(operation.rank(), group.turn);
        kernels::copy(slot, call.input + from, bytes, operation.past_cache);
        operation.barrier().view().publish(TouchPoint::kSlot, slot, bytes);
        const std::uint64_t posted = operation.next;
        FABRIC_TRY_VOID(operation.meet());
        Pointers slots{};
        for (int rank = 0; rank < operation.world(); ++rank) {
            slots[static_cast<std::size_t>(rank)] = group.slot(rank, group.turn);
        }
        const AllreduceView view{slots, slots, bytes, false, false};
        FABRIC_TRY_VOID(inner == Algorithm::kRing ? allreduce_ring(operation, view)
                                                  : allreduce_host(operation, view));
        kernels::copy(call.output + from, slot, bytes, operation.output_past_cache(total));
        group.last_turn = posted;
        ++group.turn;
    }
    return {};
}

}  // namespace fabricshm
