// The flat engines: every rank posts its bytes where all can read them, waits for the posts it
// needs, and computes its own output from them. One meeting per post. Works with buffers anywhere.
//
// Posts alternate between two places per rank, by turn. A rank raises its clock once per turn, when
// it has posted; so a clock at turn t says that its rank has finished reading turn t-1. A post at
// turn t goes where turn t-2 was: it may be written once all clocks have come to turn t-1.

#include <algorithm>
#include <cstring>

#include "kernels/copy.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/operation.hpp"

namespace fabricshm {

namespace {

constexpr Bytes kFirstLine = sizeof(TinyLine::data) - sizeof(std::uint64_t);
constexpr Bytes kOtherLine = sizeof(TinyLine::data);

int lines_for(Bytes bytes) noexcept {
    return bytes <= kFirstLine
               ? 1
               : 1 + static_cast<int>((bytes - kFirstLine + kOtherLine - 1) / kOtherLine);
}

bool posts(const Operation& operation, int peer) noexcept {
    const Kind kind = operation.call.kind;
    const bool root_alone = kind == Kind::kBroadcast || kind == Kind::kScatter;
    return kind != Kind::kBarrier && (!root_alone || peer == operation.call.root);
}

// Bytes that `peer` posts of the piece [from, from + stride) of each part.
Bytes post_bytes(const Operation& operation, int peer, Bytes from, Bytes stride) noexcept {
    if (!posts(operation, peer)) return 0;
    if (posts_all_parts(operation.call.kind)) return stride * static_cast<Bytes>(operation.world());
    const Bytes part = operation.parts.bytes(peer);
    return from >= part ? 0 : std::min(stride, part - from);
}

// Copies this rank's piece to `place`: one part, or all of them at distance `stride`.
void write_post(const Operation& operation, std::byte* place, Bytes from, Bytes stride) noexcept {
    const Call& call = operation.call;
    const int rank = operation.rank();
    if (!posts_all_parts(call.kind)) {
        const Bytes bytes = post_bytes(operation, rank, from, stride);
        if (bytes != 0) kernels::copy(place, call.input + from, bytes, operation.past_cache);
        return;
    }
    for (int part = 0; part < operation.world(); ++part) {
        const Bytes whole = operation.parts.bytes(part);
        const Bytes bytes = from >= whole ? 0 : std::min(stride, whole - from);
        const std::byte* source = call.input + operation.parts.offset(part) + from;
        std::byte* to = place + stride * static_cast<Bytes>(part);
        if (bytes != 0) kernels::copy(to, source, bytes, operation.past_cache);
    }
}

// Where this rank reads its own post: single parts need not be read back from the slot.
std::byte* own_post(const Operation& operation, std::byte* posted, Bytes from) noexcept {
    if (posts_all_parts(operation.call.kind) || operation.call.input == nullptr) return posted;
    return const_cast<std::byte*>(operation.call.input) + from;  // only read
}

void store_lines(const Visibility& view, TinySlot& slot, std::uint64_t signature,
                 const std::byte* data, Bytes bytes, std::uint64_t flag) noexcept {
    const int lines = lines_for(bytes);
    view.step(PoolStep::kSignal);
    std::memcpy(slot.lines[0].data, &signature, sizeof signature);
    Bytes done = std::min(bytes, kFirstLine);
    if (done != 0) std::memcpy(slot.lines[0].data + sizeof signature, data, done);
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

// Takes the lines of the next post away from their last readers, so that the post itself does not
// wait for that: the store of a flag is on everybody's critical path. They were read in the turn
// before this one, which is over; a rank that is late fetches them once more.
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

// Of a post with all parts this rank reads its own part alone.
void acquire_post(const Operation& operation, int peer, const std::byte* posted, Bytes from,
                  Bytes stride) noexcept {
    const bool parts = posts_all_parts(operation.call.kind);
    const Bytes shift = parts ? stride * static_cast<Bytes>(operation.rank()) : 0;
    const Bytes bytes = parts ? stride : post_bytes(operation, peer, from, stride);
    operation.meeting().view().acquire(TouchPoint::kSlotRead, posted + shift, bytes, peer);
}

}  // namespace

Result<void> run_tiny(Operation& operation) {
    GroupState& group = operation.group;
    Meeting& meeting = operation.meeting();
    FABRIC_TRY_VOID(enter(operation));

    const Bytes stride = operation.parts.largest();
    alignas(kCacheLine) std::byte mine[kTinyBytes];
    const Bytes my_bytes = post_bytes(operation, operation.rank(), 0, stride);
    if (my_bytes != 0) write_post(operation, mine, 0, stride);
    const std::uint64_t flag = operation.next++;
    operation.check_harm();
    FAULT_POINT("tiny.before_post");
    show_signature(operation);
    store_lines(meeting.view(), group.tiny_slot(operation.rank(), group.turn), operation.signature,
                mine, my_bytes, flag);
    meeting.signal(flag);
    FAULT_POINT("tiny.posted");
    claim_lines(group.tiny_slot(operation.rank(), group.turn + 1), lines_for(my_bytes));

    Pointers posted;
    for (int step = 0; step < operation.world(); ++step) {
        const int peer = (operation.rank() + step) % operation.world();
        const auto at = static_cast<std::size_t>(peer);
        const bool own = peer == operation.rank();
        posted[at] = mine;
        if (own || !needs_post_of(operation, peer)) continue;
        TinySlot& slot = group.tiny_slot(peer, group.turn);
        const Bytes bytes = post_bytes(operation, peer, 0, stride);
        FABRIC_TRY_VOID(await_lines(operation, peer, slot, lines_for(bytes), flag));
        std::uint64_t theirs;
        std::memcpy(&theirs, slot.lines[0].data, sizeof theirs);
        if (theirs != operation.signature) return Error{Errc::kMismatch, peer, "collective"};
        posted[at] = load_lines(slot, group.scratch.data() + at * kTinyScratch, bytes);
    }
    combine(operation, posted, 0, stride, stride);
    group.last_turn = flag;
    ++group.turn;
    leave_unchecked(operation);
    return {};
}

Result<void> run_slots(Operation& operation) {
    GroupState& group = operation.group;
    Meeting& meeting = operation.meeting();
    const int sub_parts = posts_all_parts(operation.call.kind) ? operation.world() : 1;
    // The largest part of all ranks decides, so that all cut alike.
    const Bytes largest = operation.largest_part;
    operation.choose_stores(StorePlace::kSlots, largest * static_cast<Bytes>(sub_parts));
    const Pieces pieces =
        cut_pieces(largest, sub_parts, group.layout.slot_bytes, group.tuning.piece_bytes);
    // Before the signature: a root does not wait in a broadcast, so a peer may still be comparing
    // the signature of the operation before the last one, which is in the same place.
    FABRIC_TRY_VOID(enter(operation));
    show_signature(operation);

    Pointers posted{};
    for (std::uint64_t piece = 0; piece < pieces.count; ++piece) {
        FABRIC_TRY_VOID(meeting.wait_all(group.last_turn, operation.call.deadline));
        const Bytes from = piece * pieces.stride;
        std::byte* place = group.slot(operation.rank(), group.turn);
        if (posts(operation, operation.rank())) write_post(operation, place, from, pieces.stride);
        meeting.view().publish(TouchPoint::kSlot, place,
                               post_bytes(operation, operation.rank(), from, pieces.stride));
        FAULT_POINT("slots.before_post");
        const std::uint64_t at = operation.step();
        FAULT_POINT("slots.posted");
        for (int step = 0; step < operation.world(); ++step) {
            const int peer = (operation.rank() + step) % operation.world();
            const auto index = static_cast<std::size_t>(peer);
            posted[index] = group.slot(peer, group.turn);
            if (peer == operation.rank()) posted[index] = own_post(operation, place, from);
            if (peer == operation.rank() || !needs_post_of(operation, peer)) continue;
            FABRIC_TRY_VOID(meeting.wait(peer, at, operation.call.deadline));
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
