// The tiny engine: data and flag travel in the same cache lines, so that one transfer brings both.
// Every rank posts, waits for the posts it needs, and computes its own output from them.
//
// Operations through tiny lines that follow each other are a run. In a run a rank waits for those
// alone whose posts it needs: the root of a broadcast for nobody. It must not get too far ahead,
// though, and has to hear sometime whether all called the same. So every kCompareEvery turns a rank
// waits for all posts of kCompareBehind turns ago, which say what their ranks have called in the
// run up to there.
//
// With E = kCompareEvery and B = kCompareBehind: a peer that compared at turn c saw this rank at
// c-B, and goes on to turn c+E-1 at the most. So while this rank is about to post at turn t, a peer
// may stand at t+B+E-2, with the posts of t+B+E-2-kTinyTurns and before overwritten. This rank
// reads the posts of turn t-B and later: kTinyTurns > 2B+E-2 keeps them.

#include <algorithm>
#include <cstring>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/operation.hpp"
#include "libfabricshm/collective/post.hpp"

namespace fabricshm {

namespace {

constexpr std::uint64_t kCompareEvery = 8;
constexpr std::uint64_t kCompareBehind = 4;
static_assert(kTinyTurns > 2 * kCompareBehind + kCompareEvery - 2);

// Lines are asked for some turns before they are used, so that several are under way at a time: an
// operation of 8 bytes takes less than one line's way between two cores. Not many turns: a reader
// has to find them written. Only hints; what comes too early is fetched once more.
constexpr std::uint64_t kClaimAhead = 4;
constexpr std::uint64_t kFetchAhead = 3;

constexpr Bytes kFirstLine = sizeof(TinyLine::data) - sizeof(std::uint64_t);
constexpr Bytes kOtherLine = sizeof(TinyLine::data);

int lines_for(Bytes bytes) noexcept {
    return bytes <= kFirstLine
               ? 1
               : 1 + static_cast<int>((bytes - kFirstLine + kOtherLine - 1) / kOtherLine);
}

void store_lines(const Visibility& view, TinySlot& slot, std::uint64_t chain, const std::byte* data,
                 Bytes bytes, std::uint64_t flag) noexcept {
    const int lines = lines_for(bytes);
    view.step(PoolStep::kSignal);
    std::memcpy(slot.lines[0].data, &chain, sizeof chain);
    Bytes done = std::min(bytes, kFirstLine);
    if (done != 0) std::memcpy(slot.lines[0].data + sizeof chain, data, done);
    // Release: whoever sees the flag of a line sees the data of that line.
    slot.lines[0].flag.store(flag, std::memory_order_release);
    for (int line = 1; line < lines; ++line) {
        const Bytes piece = std::min(bytes - done, kOtherLine);
        std::memcpy(slot.lines[line].data, data + done, piece);
        slot.lines[line].flag.store(flag, std::memory_order_release);
        done += piece;
    }
    view.publish(TouchPoint::kTiny, slot.lines, static_cast<Bytes>(lines) * kCacheLine);
}

// Takes the lines of a post to come away from their last readers, so that the post itself does not
// wait for that: the store of a flag is on everybody's critical path. A rank that is late and still
// reads what is in them fetches them once more.
void claim_lines(TinySlot& slot, int lines) noexcept {
#if defined(__x86_64__)
    for (int line = 0; line < lines; ++line) {
        // Not __builtin_prefetch: without -mprfchw it asks for a shared copy. Where the instruction
        // is unknown it does nothing.
        asm volatile("prefetchw %0" : : "m"(slot.lines[line]));
    }
#else
    for (int line = 0; line < lines; ++line) __builtin_prefetch(&slot.lines[line], 1);
#endif
}

// Asks for the lines, to read them soon.
void fetch_lines(const TinySlot& slot, int lines) noexcept {
    for (int line = 0; line < lines; ++line) __builtin_prefetch(&slot.lines[line]);
}

// What the slot's rank called in the run, this turn included.
std::uint64_t chain_in(const TinySlot& slot) noexcept {
    std::uint64_t chain;
    std::memcpy(&chain, slot.lines[0].data, sizeof chain);
    return chain;
}

// Waits for the lines of `peer`: spins on the flag, then sleeps on the clock, which its rank raises
// after the flags.
Result<void> await_lines(Operation& operation, int peer, const TinySlot& slot, int lines,
                         std::uint64_t flag) {
    Meeting& meeting = operation.meeting();
    for (int line = 0; line < lines; ++line) {
        const auto load = [&] {
            meeting.view().acquire(TouchPoint::kTinyRead, &slot.lines[line], kCacheLine, peer);
            // Acquire pairs with the release in store_lines().
            return slot.lines[line].flag.load(std::memory_order_acquire);
        };
        if (load() == flag) continue;
        const std::uint64_t spins = meeting.spins_for(peer);
        for (std::uint64_t spin = 0; load() != flag; ++spin) {
            if (spin < spins) {
#if defined(__x86_64__)
                __builtin_ia32_pause();
#endif
                continue;
            }
            FABRIC_TRY_VOID(meeting.wait(peer, flag, operation.call.deadline));
            // The clock came without the flag: the peer took part by another route.
            if (load() == flag) break;
            return Error{Errc::kMismatch, peer, "collective"};
        }
    }
    meeting.saw(peer, flag);
    return {};
}

std::byte* load_lines(TinySlot& slot, std::byte* scratch, Bytes bytes) noexcept {
    if (bytes <= kFirstLine) return slot.lines[0].data + sizeof(std::uint64_t);
    std::memcpy(scratch, slot.lines[0].data + sizeof(std::uint64_t), kFirstLine);
    Bytes done = kFirstLine;
    for (int line = 1; done < bytes; ++line) {
        const Bytes piece = std::min(bytes - done, kOtherLine);
        std::memcpy(scratch + done, slot.lines[line].data, piece);
        done += piece;
    }
    return scratch;
}

// Waits until all ranks have posted at `turn`, which had this flag, and compares what they called
// in the run up to there.
Result<void> compare_posts(Operation& operation, std::uint64_t turn, std::uint64_t flag,
                           std::uint64_t chain) {
    GroupState& group = operation.group;
    for (int step = 1; step < operation.world(); ++step) {
        const int peer = (operation.rank() + step) % operation.world();
        TinySlot& slot = group.tiny_slot(peer, turn);
        FABRIC_TRY_VOID(await_lines(operation, peer, slot, 1, flag));
        if (chain_in(slot) != chain) {
            return Error{Errc::kMismatch, peer, "collective: this one or one before it"};
        }
    }
    group.run.compared = turn + 1;
    return {};
}

// The start of a tiny operation: joins the run, or begins one.
Result<void> enter_run(Operation& operation) {
    GroupState& group = operation.group;
    TinyRun& run = group.run;
    if (!run.open()) {
        FABRIC_TRY_VOID(enter(operation));
        run = TinyRun{group.turn, 0, 0, group.turn};
    }
    const std::uint64_t length = group.turn - run.from;
    const std::uint64_t behind = group.turn - kCompareBehind;
    if (length != 0 && length % kCompareEvery == 0 && run.compared <= behind) {
        // A tiny operation is one step of the clock, so the flags of a run follow each other.
        FABRIC_TRY_VOID(
            compare_posts(operation, behind, operation.next - kCompareBehind, run.marked));
    }
    run.add(operation.signature);
    if (length % kCompareEvery == kCompareEvery - kCompareBehind) run.marked = run.chain;
    return {};
}

// Whether what each rank posts fits into its lines; the same on all ranks. Otherwise the line says
// that the post is there, beside it.
bool in_lines(const Operation& operation) noexcept {
    const bool all = posts_all_parts(operation.call.kind);
    const Bytes parts = all ? static_cast<Bytes>(operation.world()) : 1;
    return operation.largest_part * parts <= kTinyBytes;
}

// Waits for the post of `peer` in this turn, and says where its data is.
Result<std::byte*> take_post(Operation& operation, int peer, std::uint64_t flag) {
    GroupState& group = operation.group;
    TinySlot& slot = group.tiny_slot(peer, group.turn);
    const Bytes stride = operation.parts.largest();
    const Bytes bytes = in_lines(operation) ? post_bytes(operation, peer, 0, stride) : 0;
    const int lines = lines_for(bytes);
    // Relaxed: only a hint. A peer that was first and waits for nobody may be further ahead still,
    // and its next lines can come while these are used.
    const bool ahead =
        has_root(operation.call.kind) && slot.lines[0].flag.load(std::memory_order_relaxed) == flag;
    FABRIC_TRY_VOID(await_lines(operation, peer, slot, lines, flag));
    if (chain_in(slot) != group.run.chain) return Error{Errc::kMismatch, peer, "collective"};
    if (ahead) fetch_lines(group.tiny_slot(peer, group.turn + kFetchAhead), lines);
    if (!in_lines(operation)) {
        std::byte* posted = group.post(peer, group.turn);
        acquire_post(operation, peer, posted, 0, stride);
        return posted;
    }
    return load_lines(slot, group.scratch.data() + static_cast<std::size_t>(peer) * kTinyScratch,
                      bytes);
}

}  // namespace

Result<void> end_run(Operation& operation) {
    GroupState& group = operation.group;
    const TinyRun run = group.run;
    if (run.compared < group.turn) {
        FABRIC_TRY_VOID(compare_posts(operation, group.turn - 1, group.last_turn, run.chain));
    }
    group.run = {};
    return {};
}

Result<void> run_tiny(Operation& operation) {
    GroupState& group = operation.group;
    Meeting& meeting = operation.meeting();
    FABRIC_TRY_VOID(enter_run(operation));

    const Bytes stride = operation.parts.largest();
    alignas(kCacheLine) std::byte carried[kTinyBytes];
    const bool beside = !in_lines(operation);
    std::byte* mine = beside ? group.post(operation.rank(), group.turn) : carried;
    const Bytes my_bytes = post_bytes(operation, operation.rank(), 0, stride);
    if (my_bytes != 0) write_post(operation, mine, 0, stride);
    if (beside) meeting.view().publish(TouchPoint::kSlot, mine, my_bytes);
    const Bytes line_bytes = beside ? 0 : my_bytes;
    const std::uint64_t flag = operation.next++;
    operation.check_harm();
    FAULT_POINT("tiny.before_post");
    store_lines(meeting.view(), group.tiny_slot(operation.rank(), group.turn), group.run.chain,
                carried, line_bytes, flag);
    meeting.signal(flag);
    FAULT_POINT("tiny.posted");
    claim_lines(group.tiny_slot(operation.rank(), group.turn + kClaimAhead), lines_for(line_bytes));
    if (beside) mine = own_post(operation, mine, 0);

    Pointers posted;
    int heard = 1;
    for (int step = 0; step < operation.world(); ++step) {
        const int peer = (operation.rank() + step) % operation.world();
        const auto at = static_cast<std::size_t>(peer);
        posted[at] = mine;
        if (peer == operation.rank() || !needs_post_of(operation, peer)) continue;
        FABRIC_TRY(posted[at], take_post(operation, peer, flag));
        ++heard;
    }
    combine(operation, posted, 0, stride, stride);
    group.last_turn = flag;
    ++group.turn;
    if (heard == operation.world()) group.run.compared = group.turn;
    return {};
}

}  // namespace fabricshm
