// The arrival: every rank shows what it called and where its buffers are, and all run a barrier.
// Afterwards all ranks know the same, and so choose the same way on.

#include <algorithm>
#include <cstring>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/apart.hpp"
#include "libfabricshm/collective/operation.hpp"

namespace fabricshm {

namespace {

// Where a buffer of `bytes` lies in the arena. An empty one is anywhere.
std::uint64_t offset_of(const GroupPlace& place, const std::byte* buffer, Bytes bytes) noexcept {
    if (bytes == 0) return 0;
    if (buffer < place.arena || bytes > place.arena_bytes) return kNoOffset;
    const auto offset = static_cast<Bytes>(buffer - place.arena);
    return offset <= place.arena_bytes - bytes ? offset : kNoOffset;
}

// With trigger `sync` rank 0 sees all ready and commands the start, the others await the command.
Result<void> meet_on_command(Operation& operation) {
    Barrier& barrier = operation.barrier();
    GroupHeader& header = barrier.header();
    const Word command{header.command, header.command_sleepers, TouchPoint::kCommand,
                       TouchPoint::kCommandRead};
    const std::uint64_t at = operation.step();
    if (operation.rank() != 0) {
        // A rank 0 that called something else commands nothing, and may not check this rank for
        // some operations to come.
        FABRIC_TRY_VOID(barrier.wait(0, at, operation.call.deadline));
        FABRIC_TRY_VOID(check_signature(operation, 0));
        FABRIC_TRY_VOID(barrier.await(command, at, 0, operation.call.deadline));
        // All are there, so this does not wait; it fetches the lines that are read next, which the
        // command alone would not where hosts do not share caches.
        return barrier.wait_all(at, operation.call.deadline);
    }
    FABRIC_TRY_VOID(barrier.wait_all(at, operation.call.deadline));
    FAULT_POINT("arrive.before_command");
    barrier.raise(command, at);
    return {};
}

using Shown = BuffersShown;

// What a peer showed in this operation. Relaxed: it stored both before it raised its clock, which
// was acquired before this is called.
Shown shown_by(const Operation& operation, int peer) noexcept {
    const std::size_t parity = operation.parity();
    if (const TreeState* tree = operation.group.tree.get(); tree != nullptr) {
        const TreeBuffers& buffers = tree->buffers_of(peer, parity);
        return {buffers.input.load(std::memory_order_relaxed),
                buffers.output.load(std::memory_order_relaxed)};
    }
    const RankWords& words = operation.barrier().words(peer);
    return {words.input_offset[parity].load(std::memory_order_relaxed),
            words.output_offset[parity].load(std::memory_order_relaxed)};
}

// Shows where this rank's buffers are, in its clock's line, or by fours along the tree. Relaxed:
// the release of the next step makes it visible before the step.
void show_buffers(Operation& operation, const Shown& mine) noexcept {
    const std::size_t parity = operation.parity();
    if (TreeState* tree = operation.group.tree.get(); tree != nullptr) {
        // Mostly the same as ever; then the line stays with its readers.
        if (tree->written[parity] == mine) return;
        TreeBuffers& buffers = tree->buffers_of(operation.rank(), parity);
        buffers.input.store(mine.input, std::memory_order_relaxed);
        buffers.output.store(mine.output, std::memory_order_relaxed);
        tree->written[parity] = mine;
        return;
    }
    RankWords& words = operation.barrier().words(operation.rank());
    words.input_offset[parity].store(mine.input, std::memory_order_relaxed);
    words.output_offset[parity].store(mine.output, std::memory_order_relaxed);
}

// What the buffers of a peer hold. Its offsets are input: the arena has to hold what the operation
// will touch there.
struct Sizes {
    Bytes input;
    Bytes output;

    static Sizes of(const Operation& operation, int peer) noexcept {
        return {input_bytes(operation.call, peer, operation.world()),
                output_bytes(operation.call, peer, operation.world())};
    }
    bool fit(const BuffersShown& shown, Bytes arena) const noexcept {
        const auto fits = [arena](std::uint64_t offset, Bytes bytes) {
            return offset == kNoOffset || (bytes <= arena && offset <= arena - bytes);
        };
        return fits(shown.input, input) && fits(shown.output, output);
    }
};

Result<void> read_peer(Operation& operation, int peer, const Shown& shown, const Sizes& sizes) {
    const GroupPlace& place = operation.group.place;
    const bool outside = shown.input == kNoOffset || shown.output == kNoOffset;
    if (outside) operation.all_in_arena = false;
    if (!outside) operation.posted_early = false;
    // Counts of an uneven exchange are each rank's own: it goes through the slots, and nothing of a
    // peer's buffers is touched, or known.
    if (operation.call.has_own_counts()) return {};
    if (!sizes.fit(shown, place.arena_bytes)) {
        return Error{Errc::kCorrupt, peer, "collective: a peer's buffer is outside the arena"};
    }
    // In place, ranks would overwrite what others have yet to fetch: through the slots instead. So
    // in scans where each rank writes its own output only (pull.cpp).
    const bool fetches = operation.call.kind == Kind::kAllToAll ||
                         (is_scan(operation.call.kind) && !operation.barrier().view().coherent());
    if (fetches && shown.input == shown.output) {
        operation.all_in_arena = false;
    }
    const auto at = static_cast<std::size_t>(peer);
    operation.inputs[at] = place.arena + shown.input;
    operation.outputs[at] = place.arena + shown.output;
    return {};
}

Result<void> check_places(const Operation& operation, std::span<const Shown> shown) {
    const Call& call = operation.call;
    const int world = operation.world();
    std::array<BufferPlace, kWorldMax> places;
    for (std::size_t at = 0; at < shown.size(); ++at) {
        const int rank = static_cast<int>(at);
        const auto [input, output] = shown[at];
        const Bytes in = input == kNoOffset ? 0 : input_bytes(call, rank, world);
        const Bytes out = output == kNoOffset ? 0 : output_bytes(call, rank, world);
        places[at] = {input, in, output, out};
    }
    const std::span<const BufferPlace> ranks(places.data(), shown.size());
    return call.shares_output() ? check_shared(ranks) : check_apart(ranks);
}

// Where all buffers lie, mixed into one number: a program calls with the same buffers over and
// over, and is checked once for them. A collision costs the check, never the result.
std::uint64_t mixed(const Operation& operation, std::span<const Shown> shown) noexcept {
    std::uint64_t mix = operation.signature;
    for (const auto& [input, output] : shown) {
        mix = (mix ^ input) * 0xff51afd7ed558ccd;
        mix = (mix ^ (mix >> 32) ^ output) * 0xc4ceb9fe1a85ec53;
    }
    return mix;
}

// Reads what all ranks showed. All see the same words here, so what is refused for where buffers
// lie (kInvalid) is refused by all ranks, at the same step: the group stays whole.
Result<void> read_peers(Operation& operation) {
    std::array<Shown, kWorldMax> shown;
    operation.all_in_arena = true;
    // Along the tree every rank was compared with the one above it.
    const bool compared = operation.group.tree && operation.call.trigger != Trigger::kSync;
    // Without counts all have the same, but for a root, and for rank 0 of an exscan.
    const bool alike = operation.call.counts.empty();
    const int special = has_root(operation.call.kind) ? operation.call.root : 0;
    const int other = special == 0 ? 1 : 0;
    const Sizes of_others = Sizes::of(operation, other);
    for (int peer = 0; peer < operation.world(); ++peer) {
        const auto at = static_cast<std::size_t>(peer);
        shown[at] = shown_by(operation, peer);
        const bool known = alike && peer != special;
        if (!compared) FABRIC_TRY_VOID(check_signature(operation, peer));
        FABRIC_TRY_VOID(
            read_peer(operation, peer, shown[at], known ? of_others : Sizes::of(operation, peer)));
    }
    if (operation.call.has_own_counts()) return {};
    const std::span<const Shown> all(shown.data(), static_cast<std::size_t>(operation.world()));
    if (operation.call.shares_output() && !operation.all_in_arena) {
        return Error{Errc::kInvalid, 0, "output: shared, but a buffer lies outside the arena"};
    }
    const std::uint64_t places = mixed(operation, all);
    if (places == operation.group.checked_places) return {};
    FABRIC_TRY_VOID(check_places(operation, all));
    operation.group.checked_places = places;
    return {};
}

}  // namespace

// Rank 0 decides for all and shows it in the group's header, so that all ranks store alike.
void Operation::choose_stores(StorePlace place, Bytes bytes) noexcept {
    store_cell = StorePolicy::cell_of(place, call.kind, bytes);
    if (store_cell < 0) return;
    past_cache = rank() == 0 ? group.stores.past_cache(store_cell)
                             : shown_past_cache(barrier().header(), store_cell);
}

void show_signature(Operation& operation) noexcept {
    operation.barrier().show_signature(operation.parity(), operation.shown_signature());
}

Result<void> check_signature(const Operation& operation, int peer) {
    // The peer is at this operation or has shown at most the next one, which has the other parity.
    // Relaxed: its clock was acquired.
    const auto theirs = operation.barrier().words(peer).signature[operation.parity()].load(
        std::memory_order_relaxed);
    if (theirs != operation.shown_signature()) return Error{Errc::kMismatch, peer, "collective"};
    return {};
}

// All clocks have passed the last operation, and no rank starts the one after this before this rank
// has signalled: what the others called in the last one is there, and stays.
Result<void> check_last_operation(Operation& operation) {
    GroupState& group = operation.group;
    Barrier& barrier = operation.barrier();
    const TimePoint deadline = operation.call.deadline;
    for (int peer = 0; peer < operation.world(); ++peer) {
        // Once more by the clock itself: that a peer came this far may be known from its tiny lines
        // alone, and where hosts do not share caches those say nothing about its signature.
        if (peer != operation.rank())
            FABRIC_TRY_VOID(barrier.await(barrier.clock_of(peer), group.last_turn, peer, deadline));
        const auto theirs =
            barrier.words(peer).signature[operation.parity() ^ 1].load(std::memory_order_relaxed);
        if (theirs != group.last_signature) {
            return Error{Errc::kMismatch, peer, "collective: the one before this"};
        }
    }
    group.unchecked = false;
    return {};
}

namespace {

// Shows this rank's buffers, and runs the barrier. True when along the tree all showed what they
// did on the last arrival: nothing has to be read then.
Result<bool> show_and_meet(Operation& operation, const Shown& mine) {
    Barrier& barrier = operation.barrier();
    const Call& call = operation.call;
    TreeState* tree = operation.group.tree.get();
    if (call.trigger == Trigger::kSync) {
        FABRIC_TRY_VOID(meet_on_command(operation));
        return false;
    }
    if (tree == nullptr) {
        FABRIC_TRY_VOID(operation.meet());
        return false;
    }
    const TreeState::Arrival& last = tree->last;
    const bool unchanged =
        last.stands && last.signature == operation.signature && last.shown == mine;
    operation.check_harm();
    return barrier.pass_and_vote(operation.next++, unchanged, call.deadline);
}

void take_last(Operation& operation) noexcept {
    const TreeState::Arrival& last = operation.group.tree->last;
    operation.all_in_arena = last.all_in_arena;
    operation.posted_early = operation.posted_early && last.posted_early;
    const std::size_t bytes = last.inputs.size() * sizeof(std::byte*);
    std::memcpy(operation.inputs.data(), last.inputs.data(), bytes);
    std::memcpy(operation.outputs.data(), last.outputs.data(), bytes);
}

void keep_as_last(Operation& operation, const Shown& mine) noexcept {
    TreeState::Arrival& last = operation.group.tree->last;
    const auto world = static_cast<std::ptrdiff_t>(operation.world());
    last.stands = !operation.call.has_own_counts();
    last.signature = operation.signature;
    last.shown = mine;
    last.all_in_arena = operation.all_in_arena;
    last.posted_early = operation.posted_early;
    std::copy_n(operation.inputs.begin(), world, last.inputs.begin());
    std::copy_n(operation.outputs.begin(), world, last.outputs.begin());
}

}  // namespace

Result<void> arrive(Operation& operation, void (*post_first)(Operation&)) {
    const GroupPlace& place = operation.group.place;
    const Call& call = operation.call;
    const Bytes in = input_bytes(call, operation.rank(), operation.world());
    const Bytes out = output_bytes(call, operation.rank(), operation.world());
    // As in run_slots(): what is written here may still be read, if the last turn had no barrier.
    FABRIC_TRY_VOID(enter(operation));
    show_signature(operation);
    const Shown mine{offset_of(place, call.input, in), offset_of(place, call.output, out)};
    show_buffers(operation, mine);
    // A rank that has a buffer outside knows that the operation goes through the slots.
    const bool outside = mine.input == kNoOffset || mine.output == kNoOffset;
    operation.posted_early = post_first != nullptr;
    if (post_first != nullptr && outside) post_first(operation);
    const Visibility& view = operation.barrier().view();
    // On coherent memory what the caller stored is visible by the step's release.
    if (!view.coherent()) view.publish(TouchPoint::kInput, call.input, in);
    operation.arrival = operation.next;
    FAULT_POINT("arrive.before");
    FABRIC_TRY(const bool unchanged, show_and_meet(operation, mine));
    FAULT_POINT("arrive.met");
    if (unchanged) {
        take_last(operation);
        return {};
    }
    TreeState* tree = operation.group.tree.get();
    if (tree != nullptr) tree->last.stands = false;
    FABRIC_TRY_VOID(read_peers(operation));
    if (tree != nullptr) keep_as_last(operation, mine);
    return {};
}

}  // namespace fabricshm
