// The tiny engine: data and flag travel in the same cache line, so that one transfer brings both;
// posts that are too long for it lie next to it, and the flag says that they are there. Every rank
// posts, waits for the posts it needs, and computes its own output from them.
//
// Operations through this engine that follow each other are a run. In a run a rank waits for those
// alone whose posts it needs: the root of a broadcast for none. It must not get too far ahead,
// though, and has to learn at some time whether all called the same. So every kCompareEvery turns a
// rank waits for all posts of kCompareBehind turns ago, which say what their ranks have called in
// the run up to there. In these turns every rank posts; in the others only those whose post a peer
// reads: a receiver of broadcasts posts in one turn of kCompareEvery, and else raises its clock
// alone.
//
// With E = kCompareEvery and B = kCompareBehind: a peer that compared at turn c observed the post
// of this rank at c-B, and goes on to turn c+E-1 at most. So while this rank is about to begin turn
// t, a peer may stand at t+B+E-2, with the posts of t+B+E-2-kTinyTurns and before overwritten. This
// rank reads the posts of turn t-B and later: kTinyTurns > 2B+E-2 keeps them.
//
// The last turns of a run may not have been compared when it ends. What was called in it is
// therefore a part of the signature that the operation behind it shows (enter() in operation.hpp).

#include <algorithm>
#include <cstring>

#include "kernels/copy.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/operation.hpp"
#include "libfabricshm/collective/post.hpp"

namespace fabricshm {

namespace {

constexpr std::uint64_t kCompareEvery = 16;
constexpr std::uint64_t kCompareBehind = 8;
static_assert(kTinyTurns > 2 * kCompareBehind + kCompareEvery - 2);
// Turns of a run, by their number modulo kCompareEvery: those whose posts are compared.
constexpr std::uint64_t kMarkedPhase = kCompareEvery - kCompareBehind;

// Lines are asked for some turns before they are used, so that several are under way at a time: an
// operation of 8 bytes takes less than one line's way between two cores. Not many turns: a reader
// has to find them written. Only hints; what comes too early is fetched once more.
constexpr std::uint64_t kClaimAhead = 8;
constexpr std::uint64_t kFetchAhead = 6;
constexpr std::uint64_t kFetchComparedAhead = 2;
// The slot that is claimed is not one that the slowest rank still reads.
static_assert(kClaimAhead + kCompareBehind + kCompareEvery <= kTinyTurns);
// Of a longer post only so much is asked for: the processor fetches the rest by itself.
constexpr Bytes kMaxAhead = 1 * kKiB;

// Polls without a pause: a peer that runs at the same pace is later by less than a pause takes.
constexpr int kFirstLooks = 16;

// Takes lines that will be stored to away from their last readers, so that the store itself does
// not wait for that: all ranks wait for the flag. A rank that is late and still reads what is in
// them fetches them once more.
void claim(std::byte* from, Bytes bytes) noexcept {
    for (Bytes at = 0; at < bytes; at += kCacheLine) {
#if defined(__x86_64__)
        // Not __builtin_prefetch: without -mprfchw it asks for a shared copy. Where the instruction
        // is unknown it does nothing.
        asm volatile("prefetchw %0" : : "m"(from[at]));
#else
        __builtin_prefetch(from + at, 1);
#endif
    }
}

// Asks for the lines, to read them soon.
void fetch(const std::byte* from, Bytes bytes) noexcept {
    for (Bytes at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(from + at);
}

// Where the post of `rank` lies in this turn.
std::byte* place_of(const Operation& operation, int rank, std::uint64_t turn) noexcept {
    const GroupState& group = operation.group;
    if (operation.tiny.beside) return group.post(rank, turn);
    return group.tiny_slot(rank, turn).place(operation.tiny.room);
}

// What of a post is not in the line of its flag.
Bytes bytes_beside(const TinyPlan& plan, Bytes bytes) noexcept {
    if (plan.room <= kTinyLineBytes) return 0;
    return plan.beside ? bytes : std::min(bytes, kTinyBytes - kTinyLineBytes);
}

void claim_ahead(const Operation& operation) noexcept {
    const GroupState& group = operation.group;
    const TinyPlan& plan = operation.tiny;
    const std::uint64_t turn = group.turn + kClaimAhead;
    TinySlot& slot = group.tiny_slot(operation.rank(), turn);
    claim(slot.flag_line(), 1);
    if (plan.room <= kTinyLineBytes) return;
    if (!plan.beside) return claim(slot.data, 1);
    claim(group.post(operation.rank(), turn), std::min(plan.post_bytes, kMaxAhead));
}

void fetch_ahead(const Operation& operation, int peer) noexcept {
    const GroupState& group = operation.group;
    const TinyPlan& plan = operation.tiny;
    const std::uint64_t turn = group.turn + kFetchAhead;
    TinySlot& slot = group.tiny_slot(peer, turn);
    fetch(slot.flag_line(), 1);
    if (plan.room <= kTinyLineBytes) return;
    if (!plan.beside) return fetch(slot.data, 1);
    fetch(group.post(peer, turn), std::min(plan.room, kMaxAhead));
}

// Stores what the others read of this rank in this turn.
void store_post(Operation& operation, std::uint64_t flag) noexcept {
    GroupState& group = operation.group;
    const TinyPlan& plan = operation.tiny;
    const Visibility& view = operation.barrier().view();
    TinySlot& slot = group.tiny_slot(operation.rank(), group.turn);
    if (plan.post_bytes != 0) {
        std::byte* place = place_of(operation, operation.rank(), group.turn);
        if (!plan.beside && !posts_all_parts(operation.call.kind)) {
            std::memcpy(place, operation.call.input, plan.post_bytes);
        } else {
            write_post(operation, place, 0, operation.largest_part);
        }
        if (plan.room > kTinyLineBytes) {
            view.publish(TouchPoint::kSlot, place, bytes_beside(plan, plan.post_bytes));
        }
    }
    operation.check_harm();
    FAULT_POINT("tiny.before_post");
    view.step(PoolStep::kSignal);
    slot.chain = group.run.chain;
    // Release: a reader that sees the flag sees the chain and the data.
    slot.flag.store(flag, std::memory_order_release);
    view.publish(TouchPoint::kTiny, slot.flag_line(), kCacheLine);
}

bool has_flag(Barrier& barrier, const TinySlot& slot, int peer, std::uint64_t flag) noexcept {
    barrier.view().acquire(TouchPoint::kTinyRead, &slot.data[kCacheLine], kCacheLine, peer);
    // Acquire pairs with the release in store_post().
    return slot.flag.load(std::memory_order_acquire) == flag;
}

// Waits for the flag: spins on it, then sleeps on the clock, which its rank raises after the flag.
Result<void> await_flag_slowly(Operation& operation, int peer, const TinySlot& slot,
                               std::uint64_t flag) {
    Barrier& barrier = operation.barrier();
    const std::uint64_t spins = barrier.spins_for(peer);
    for (std::uint64_t spin = 0; spin < spins; ++spin) {
        if (has_flag(barrier, slot, peer, flag)) return {};
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    FABRIC_TRY_VOID(barrier.wait(peer, flag, operation.deadline()));
    if (has_flag(barrier, slot, peer, flag)) return {};
    // The clock came without the flag: the peer took part in another way.
    return Error{Errc::kMismatch, peer, "collective"};
}

inline Result<void> await_flag(Operation& operation, int peer, const TinySlot& slot,
                               std::uint64_t flag) {
    Barrier& barrier = operation.barrier();
    bool here = has_flag(barrier, slot, peer, flag);
    for (int look = 1; !here && look < kFirstLooks; ++look) {
        here = has_flag(barrier, slot, peer, flag);
    }
    if (!here) FABRIC_TRY_VOID(await_flag_slowly(operation, peer, slot, flag));
    barrier.saw(peer, flag);
    return {};
}

// Waits until all ranks have posted at `turn`, which had this flag, and compares what they called
// in the run up to there.
Result<void> compare_posts(Operation& operation, std::uint64_t turn, std::uint64_t flag,
                           std::uint64_t chain) {
    GroupState& group = operation.group;
    for (int step = 1; step < operation.world(); ++step) {
        const int peer = (operation.rank() + step) % operation.world();
        TinySlot& slot = group.tiny_slot(peer, turn);
        FABRIC_TRY_VOID(await_flag(operation, peer, slot, flag));
        if (slot.chain != chain) {
            return Error{Errc::kMismatch, peer, "collective: this one or one before it"};
        }
    }
    group.run.compared = turn + 1;
    return {};
}

// The lines that compare_posts() will read soon.
void fetch_compared(const Operation& operation, std::uint64_t turn) noexcept {
    for (int peer = 0; peer < operation.world(); ++peer) {
        fetch(operation.group.tiny_slot(peer, turn).flag_line(), 1);
    }
}

// The start of a tiny operation: joins the run, or begins one.
Result<void> enter_run(Operation& operation) {
    GroupState& group = operation.group;
    TinyRun& run = group.run;
    if (__builtin_expect(!run.open(), false)) {
        FABRIC_TRY_VOID(enter(operation));
        run = TinyRun{group.turn, 0, 0, group.turn};
    }
    const std::uint64_t length = group.turn - run.from;
    const std::uint64_t phase = length % kCompareEvery;
    const std::uint64_t behind = group.turn - kCompareBehind;
    if (phase == 0 && length != 0 && run.compared <= behind) {
        // A tiny operation is one step of the clock, so the flags of a run follow each other.
        FABRIC_TRY_VOID(
            compare_posts(operation, behind, operation.next - kCompareBehind, run.marked));
    }
    run.add(operation.signature);
    if (phase == kMarkedPhase) run.marked = run.chain;
    if (phase == kCompareEvery - kFetchComparedAhead &&
        run.compared <= behind + kFetchComparedAhead) {
        fetch_compared(operation, behind + kFetchComparedAhead);
    }
    return {};
}

// Waits for the post of `peer` in this turn.
inline Result<void> take_post(Operation& operation, int peer, std::uint64_t flag) {
    GroupState& group = operation.group;
    const TinyPlan& plan = operation.tiny;
    TinySlot& slot = group.tiny_slot(peer, group.turn);
    // Relaxed: only a hint. A peer that was first and waits for no other may be further ahead
    // still, and its next lines can come while these are used.
    const bool ahead = plan.runs_ahead && slot.flag.load(std::memory_order_relaxed) == flag;
    FABRIC_TRY_VOID(await_flag(operation, peer, slot, flag));
    if (slot.chain != group.run.chain) return Error{Errc::kMismatch, peer, "collective"};
    if (ahead) fetch_ahead(operation, peer);
    if (plan.room > kTinyLineBytes && operation.barrier().view().active()) {
        const std::byte* posted = place_of(operation, peer, group.turn);
        acquire_post(operation, peer, posted, 0, operation.largest_part);
    }
    return {};
}

// This rank's output, from the posts.
void combine_posts(Operation& operation, const Pointers& posted) noexcept {
    const TinyPlan& plan = operation.tiny;
    const Call& call = operation.call;
    if (!plan.reduces) {
        if (call.kind == Kind::kBarrier) return;
        return combine(operation, posted, 0, operation.largest_part, operation.largest_part);
    }
    kernels::ReduceJob job = plan.job;
    void* output = call.output;
    // Pointers to what is only read.
    job.sources = reinterpret_cast<const void* const*>(posted.data());
    job.destinations = &output;
    kernels::reduce(job);
}

}  // namespace

void prepare_tiny(Operation& operation) noexcept {
    TinyPlan& plan = operation.tiny;
    const Kind kind = operation.call.kind;
    const int rank = operation.rank();
    const bool at_root = rank == operation.call.root;
    const bool parts = posts_all_parts(kind);
    plan.room = operation.largest_part * (parts ? static_cast<Bytes>(operation.world()) : 1);
    plan.beside = plan.room > kTinyBytes;
    const Flow flow = row_of(kind).flow;
    const bool from_root = flow == Flow::kFromRoot;
    const bool to_root = flow == Flow::kToRoot;
    const bool up = flow == Flow::kUp;
    const bool last = rank == operation.world() - 1;
    plan.needed = from_root ? at_root : to_root ? !at_root : !up || !last;
    plan.post_bytes = plan.needed ? post_bytes(operation, rank, 0, operation.largest_part) : 0;
    plan.reads_root = from_root && !at_root;
    plan.reads_below = up && !last;
    plan.reads_all = to_root ? at_root : up ? last : !from_root;
    plan.runs_ahead = flow != Flow::kAll;
    const int sources = up ? sources_of_scan(operation, rank) : operation.world();
    // A single source is copied, which combine() does.
    plan.reduces =
        kind == Kind::kAllreduce || (kind == Kind::kReduce && at_root) || (up && sources > 1);
    if (!plan.reduces) return;
    plan.job = reduce_job(operation);
    plan.job.source_count = sources;
    plan.job.destination_count = 1;
    plan.job.count = operation.largest_part / kernels::size_of(plan.job.type);
}

Result<void> run_tiny(Operation& operation) {
    GroupState& group = operation.group;
    const TinyPlan& plan = operation.tiny;
    FABRIC_TRY_VOID(enter_run(operation));
    const std::uint64_t flag = operation.next++;
    const bool compared = (group.turn - group.run.from) % kCompareEvery == kMarkedPhase;
    if (plan.needed || compared) store_post(operation, flag);
    operation.barrier().signal(flag);
    FAULT_POINT("tiny.posted");
    if (plan.needed) claim_ahead(operation);

    Pointers posted;
    const int rank = operation.rank();
    const int world = operation.world();
    for (int step = 1; step < world; ++step) {
        const int peer = rank + step < world ? rank + step : rank + step - world;
        if (!plan.reads_all && !(plan.reads_root && peer == operation.call.root) &&
            !(plan.reads_below && peer < rank)) {
            continue;
        }
        FABRIC_TRY_VOID(take_post(operation, peer, flag));
        posted[static_cast<std::size_t>(peer)] = place_of(operation, peer, group.turn);
    }
    // Not read back from the post: its lines are on their way between the cores, and a load behind
    // the store would wait for them (1 KiB: 360 ns instead of 212).
    posted[static_cast<std::size_t>(rank)] =
        own_post(operation, place_of(operation, rank, group.turn), 0);
    combine_posts(operation, posted);
    group.last_turn = flag;
    ++group.turn;
    if (plan.reads_all || (plan.reads_root && world == 2)) group.run.compared = group.turn;
    return {};
}

}  // namespace fabricshm
