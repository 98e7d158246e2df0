// Operation: one collective while it runs, and the engines that run it. Internal to collective/.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/reduce.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/collective/barrier.hpp"
#include "libfabricshm/collective/call.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/collective/plan.hpp"
#include "libfabricshm/collective/store_policy.hpp"
#include "libfabricshm/collective/tree.hpp"
#include "libfabricshm/collective/tuning.hpp"
#include "libfabricshm/os/poison.hpp"
#include "libfabricshm/proto/messages.hpp"
#include "libfabricshm/shm/group_block.hpp"

namespace fabricshm {

/// How much is done between two checks whether the group broke: ranks that observed it break are
/// leaving, and want their buffers back. 4 MiB take a fraction of a millisecond.
inline constexpr Bytes kBytesPerCheck = 4 * kMiB;

/// Tiny operations that followed each other without any other kind between (tiny.cpp).
struct TinyRun {
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};

    std::uint64_t from = kNone;  // the turn at which it began
    std::uint64_t chain = 0;     // what this rank called in it, all mixed into one number
    std::uint64_t marked = 0;    // the chain at the turn that is compared next
    std::uint64_t compared = 0;  // in all turns before this one all ranks had the same chain

    bool open() const noexcept { return from != kNone; }
    void add(std::uint64_t signature) noexcept {
        chain = (chain ^ signature) * 0x9e3779b97f4a7c15;  // odd: no two chains fall into one
        chain ^= chain >> 32;
    }
};

/// What a group keeps between operations.
struct GroupState {
    GroupState(GroupPlace where, std::byte* block);

    GroupPlace place;
    GroupLayout layout;
    Barrier barrier;
    Tuning tuning;
    TinySlot* tiny;         // [rank * kTinyTurns + turn % kTinyTurns]
    ChannelLine* channels;  // [(from * world + to) * channel_lines + line % channel_lines]
    ChannelTaken* taken;    // [to * world + from]
    ChannelCalls* calls;    // [to]
    std::byte* slots;       // [(rank * 2 + turn parity) * slot_bytes]
    std::byte* posts;       // [(rank * kTinyTurns + turn % kTinyTurns) * post_stride]

    // The same on all ranks after the same operations, without any exchange:
    std::uint64_t base = 0;        // clock value at which the next operation starts
    std::uint64_t turn = 0;        // slot turns taken; the parity says which of the two slots
    std::uint64_t last_turn = 0;   // the clock value signalled at the last turn
    std::uint64_t claimed = 0;     // claims made by all ranks in all operations
    std::uint64_t operations = 0;  // the parity says which signature and offsets are in use
    TinyRun run;                   // not open after any other operation

    // What this rank called in the run that ended with this operation, 0 when none did; a part of
    // the signature that the others compare, since they may not have compared the last turns.
    std::uint64_t run_before = 0;

    // The last operation had a root, or was a scan, so this rank did not hear of all others: they
    // are compared at the start of the next one.
    bool unchecked = false;
    std::uint64_t last_signature = 0;

    // The last places of all buffers that were found apart, mixed with the signature (arrive.cpp).
    std::uint64_t checked_places = 0;

    // After a failure: the arrival of the operation in which it came, 0 when this rank had not
    // arrived, so that no rank has learnt where its buffers are.
    std::uint64_t exposed = 0;

    // An operation failed in a way that ends the group, or the group was retired. Atomic, since the
    // worker sets it and callers read it; nothing is ordered by it.
    std::atomic<bool> failed{false};

    StorePolicy stores;  // rank 0's measurements; the others see its choices in the group block

    // This rank has touched a lost page and reported it; in the collective or in a message. Relaxed
    // use: what it orders is the broken word's business.
    std::atomic<bool> reported_poison{false};

    std::unique_ptr<TreeState> tree;  // of groups that are large enough, and share caches

    /// This thread touched a lost page: breaks the group with the region's id, once. Has to come
    /// before the rank's next signal, since a peer that sees that signal takes the rank's data for
    /// good.
    void poisoned(const std::byte* place) noexcept;

    std::byte* slot(int rank, std::uint64_t at_turn) const noexcept {
        return slots + (static_cast<Bytes>(rank) * 2 + (at_turn & 1)) * layout.slot_bytes;
    }
    /// What goes with a tiny slot, for posts that are too large for its lines.
    std::byte* post(int rank, std::uint64_t at_turn) const noexcept {
        const auto index = static_cast<Bytes>(rank) * kTinyTurns + at_turn % kTinyTurns;
        return posts + index * layout.post_stride;
    }
    TinySlot& tiny_slot(int rank, std::uint64_t at_turn) const noexcept {
        return tiny[static_cast<std::size_t>(rank) * kTinyTurns + at_turn % kTinyTurns];
    }
};

/// Pointers to one buffer of every rank, as this process sees them.
using Pointers = std::array<std::byte*, kWorldMax>;

/// Of a tiny operation: what does not depend on its buffers, see prepare_tiny().
struct TinyPlan {
    Bytes post_bytes = 0;      // what this rank posts
    Bytes room = 0;            // what a rank posts at most: decides for all where posts lie
    bool beside = false;       // in the posts next to the slots
    bool needed = false;       // some rank reads the post of this one, whatever the turn
    bool reads_all = false;    // this rank reads every post, and so learns what all called
    bool reads_root = false;   // it reads that of the root alone
    bool reads_below = false;  // it reads those of the ranks below it alone
    bool runs_ahead = false;   // some rank needs no post of some other, and so may be ahead of it
    bool reduces = false;      // with `job`, the same part of all posts
    kernels::ReduceJob job;    // but for sources and destination
};

/// One operation of one rank, checked before. On the stack of Group's call, or kept by Group for
/// further calls like it.
struct Operation {
    // The parts are made in place; see plan_input() in group.cpp for what a copy costs.
    Operation(GroupState& of, const Call& what)
        : group(of), call(what), parts(parts_of(what, of.place.world)) {}

    GroupState& group;
    const Call& call;
    const PoisonGuard* guard = nullptr;  // of the thread that runs it
    Parts parts;                         // of what the ranks exchange; empty for own counts
    Bytes largest_part = 0;              // of any rank: decides how all cut the operation in pieces
    std::uint64_t signature = 0;
    Route route = Route::kArrive;
    TinyPlan tiny;              // on that route
    std::uint64_t next = 0;     // the clock value of the next step
    std::uint64_t arrival = 0;  // of the step that showed where the buffers are, if there is one
    bool all_in_arena = false;  // after arrive()
    bool posted_early = false;  // likewise: all ranks made their first post before they arrived
    int store_cell = -1;        // what this operation is measured as, after choose_stores()
    bool past_cache = false;    // likewise: store so what peers read
    TraceWay way = TraceWay::kNone;  // on the route kArrive, once it is chosen
    // Of a kept operation, which comes with a timeout: the deadline, once a wait turned slow.
    Duration timeout{};
    TimePoint timeout_ends{};
    Pointers inputs;   // after arrive(), if all_in_arena; before that not even zero: clearing them
    Pointers outputs;  // would be a good part of what an operation of 8 bytes costs

    /// When a slow wait of the tiny engine has to end. A kept operation reads the clock here and
    /// not when it starts: all before was a few microseconds of spinning at most, by which it ends
    /// too late.
    TimePoint deadline() noexcept {
        if (timeout == Duration{}) return call.deadline;
        if (timeout_ends == TimePoint{}) timeout_ends = deadline_from_now(timeout);
        return timeout_ends;
    }

    int rank() const noexcept { return group.place.rank; }
    std::size_t parity() const noexcept { return group.operations & 1; }
    /// The signature as others see it: with the operation's number in it, since a peer that runs
    /// through tiny lines leaves there what it called before.
    std::uint64_t shown_signature() const noexcept {
        return signature ^ (group.operations * 0xff51afd7ed558ccd) ^ group.run_before;
    }
    int world() const noexcept { return group.place.world; }
    Barrier& barrier() const noexcept { return group.barrier; }

    /// Before others may rely on what this rank has read: see GroupState::poisoned().
    void check_harm() noexcept {
        if (__builtin_expect(guard->hit(), false)) group.poisoned(PoisonGuard::place());
    }
    /// Raises this rank's clock by one step and returns the new value.
    std::uint64_t step() noexcept {
        check_harm();
        barrier().signal(next);
        return next++;
    }
    /// Sets `store_cell` and `past_cache`; called by the engine that knows where it stores. `bytes`
    /// is the size of the operation as the user sees it.
    void choose_stores(StorePlace place, Bytes bytes) noexcept;

    /// Whether an own output of `bytes` bytes, which no peer reads, is better stored past the
    /// cache: when all buffers together do not fit into it.
    bool output_past_cache(Bytes bytes) const noexcept {
        return bytes * 2 * static_cast<Bytes>(world()) >= group.tuning.streaming_from;
    }

    /// One step, for which all wait until all have come.
    Result<void> meet() {
        check_harm();
        return barrier().meet(next++, call.deadline);
    }
    /// The last barrier, after all that this rank reads of its peers. A rank that gave up may have
    /// changed its input since, and have signalled before: a rank that read it then finds the group
    /// broken.
    Result<void> finish() {
        FABRIC_TRY_VOID(barrier().check_unbroken());
        return meet();
    }
};

/// The start of every operation outside a run: waits until all ranks have read what the turn before
/// the last one posted, and compares what they called since where that is still open. A run ends
/// here; what was called in it goes into the signature of this operation.
Result<void> check_last_operation(Operation& operation);
inline Result<void> enter(Operation& operation) {
    GroupState& group = operation.group;
    FABRIC_TRY_VOID(group.barrier.wait_all(group.last_turn, operation.call.deadline));
    if (group.run.open()) {
        group.run_before = group.run.chain;
        group.run = {};
    }
    return group.unchecked ? check_last_operation(operation) : Result<void>();
}
/// The end of an operation through slots, in which perhaps only some ranks were compared.
inline void leave_unchecked(Operation& operation) noexcept {
    operation.group.unchecked = !all_hear_all(operation.call.kind);
    operation.group.last_signature = operation.shown_signature();
}

/// Shows the others what this rank called; before its first step.
void show_signature(Operation& operation) noexcept;
/// kMismatch when `peer`, which has come to this operation, called something else.
Result<void> check_signature(const Operation& operation, int peer);

/// The engines. Each leaves `next` where the operation ended, the same on all ranks.
Result<void> run_tiny(Operation& operation);
/// Works out operation.tiny, from the call and its parts; before run_tiny().
void prepare_tiny(Operation& operation) noexcept;
Result<void> run_slots(Operation& operation);
Result<void> run_tree(Operation& operation);
/// Shows this rank's buffers to the others and finds theirs; with trigger `sync`, waits for the
/// command of rank 0. `post_first` is called before that if this rank's buffers are outside the
/// arena; nullptr: nothing is posted.
Result<void> arrive(Operation& operation, void (*post_first)(Operation&) = nullptr);
Result<void> run_direct(Operation& operation);
/// What run_direct() does where hosts do not share caches: each rank writes its own output only.
Result<void> run_pull(Operation& operation);
Result<void> run_ring(Operation& operation);
Result<void> run_host(Operation& operation);
/// Allreduce in chunks through the slots, of which each rank reduces its share.
Result<void> run_staged(Operation& operation);
/// Ring or host on pieces that were copied into the slots, for buffers outside the arena.
Result<void> run_in_slots(Operation& operation, Algorithm inner);

/// The posts of run_slots() and run_staged() that a rank makes before it arrives, when its own
/// buffers are outside the arena; see Operation::posted_early.
void post_first_piece(Operation& operation);
void post_first_chunk(Operation& operation);

/// The algorithms on any buffers that all ranks can reach: `inputs` are reduced into `outputs`.
struct AllreduceView {
    const Pointers& inputs;
    const Pointers& outputs;
    Bytes bytes;
    bool may_claim;   // ranks claim chunks; otherwise each has its part
    bool one_output;  // all ranks have the same output, written once; otherwise all are apart
};
Result<void> allreduce_direct(Operation& operation, const AllreduceView& view);
Result<void> allreduce_pull(Operation& operation, const AllreduceView& view);
Result<void> allreduce_ring(Operation& operation, const AllreduceView& view);
Result<void> allreduce_host(Operation& operation, const AllreduceView& view);

/// Computes this rank's output for bytes [from, from + bytes) of every part, given where each rank
/// posted that piece. `stride` is the distance of parts in a post (posts_all_parts kinds).
void combine(const Operation& operation, const Pointers& posted, Bytes from, Bytes bytes,
             Bytes stride);

/// Whether `peer`'s post is needed by this rank, and whether this rank posts at all.
bool needs_post_of(const Operation& operation, int peer) noexcept;

/// How many ranks, from rank 0 on, the output of `rank` in a scan is made of.
int sources_of_scan(const Operation& operation, int rank) noexcept;

/// A ReduceJob with dtype, op and divisor of the call filled in.
kernels::ReduceJob reduce_job(const Operation& operation) noexcept;

}  // namespace fabricshm
