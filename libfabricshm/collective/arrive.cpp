// The arrival: every rank shows what it called and where its buffers are, and all meet. Afterwards
// all ranks know the same, and so choose the same way on.

#include "libfabricshm/base/fault_point.hpp"
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

// A peer's offset is input: it must hold what the operation will touch.
bool valid(const GroupPlace& place, std::uint64_t offset, Bytes bytes) noexcept {
    return bytes <= place.arena_bytes && offset <= place.arena_bytes - bytes;
}

// With trigger `sync` rank 0 sees all ready and commands the start, the others await the command.
Result<void> meet_on_command(Operation& operation) {
    Meeting& meeting = operation.meeting();
    GroupHeader& header = meeting.header();
    const Word command{header.command, header.command_sleepers, TouchPoint::kCommand,
                       TouchPoint::kCommandRead};
    const std::uint64_t at = operation.step();
    if (operation.rank() != 0) {
        // A rank 0 that called something else commands nothing, and may not look at this rank for
        // some operations to come.
        FABRIC_TRY_VOID(meeting.wait(0, at, operation.call.deadline));
        FABRIC_TRY_VOID(check_signature(operation, 0));
        FABRIC_TRY_VOID(meeting.await(command, at, 0, operation.call.deadline));
        // All are there, so this does not wait; it fetches the lines that are read next, which the
        // command alone would not where hosts do not share caches.
        return meeting.wait_all(at, operation.call.deadline);
    }
    FABRIC_TRY_VOID(meeting.wait_all(at, operation.call.deadline));
    FAULT_POINT("arrive.before_command");
    meeting.raise(command, at);
    return {};
}

Result<void> read_peer(Operation& operation, int peer) {
    FABRIC_TRY_VOID(check_signature(operation, peer));
    const GroupPlace& place = operation.group.place;
    const RankWords& words = operation.meeting().words(peer);
    const std::size_t parity = operation.parity();
    // Relaxed: the peer stored both before it raised its arrival word, which was acquired before we
    // came here.
    const auto in = words.input_offset[parity].load(std::memory_order_relaxed);
    const auto out = words.output_offset[parity].load(std::memory_order_relaxed);
    if (in == kNoOffset || out == kNoOffset) {
        operation.all_in_arena = false;
        return {};
    }
    const int world = operation.world();
    // Counts of an uneven all_to_all are each rank's own.
    const bool own_counts =
        operation.call.kind == Kind::kAllToAll && !operation.call.counts.empty();
    if (own_counts) return {};  // goes through the slots; nothing of the peer's is touched
    if (!valid(place, in, input_bytes(operation.call, peer, world)) ||
        !valid(place, out, output_bytes(operation.call, peer, world))) {
        return Error{Errc::kCorrupt, peer, "collective: a peer's buffer is outside the arena"};
    }
    // In place, ranks would overwrite what others have yet to fetch: through the slots instead.
    if (operation.call.kind == Kind::kAllToAll && in == out) operation.all_in_arena = false;
    const auto at = static_cast<std::size_t>(peer);
    operation.inputs[at] = place.arena + in;
    operation.outputs[at] = place.arena + out;
    return {};
}

}  // namespace

// Rank 0 decides for all and shows it in the group's header, so that all ranks store alike.
void Operation::choose_stores(StorePlace place, Bytes bytes) noexcept {
    store_cell = StorePolicy::cell_of(place, call.kind, bytes);
    if (store_cell < 0) return;
    past_cache = rank() == 0 ? group.stores.past_cache(store_cell)
                             : shown_past_cache(meeting().header(), store_cell);
}

void show_signature(Operation& operation) noexcept {
    // Relaxed: the release of the next step makes it visible before the step.
    operation.meeting()
        .words(operation.rank())
        .signature[operation.parity()]
        .store(operation.shown_signature(), std::memory_order_relaxed);
}

Result<void> check_signature(const Operation& operation, int peer) {
    // The peer is at this operation or has shown at most the next one, which has the other parity.
    // Relaxed: its clock was acquired.
    const auto theirs = operation.meeting().words(peer).signature[operation.parity()].load(
        std::memory_order_relaxed);
    if (theirs != operation.shown_signature()) return Error{Errc::kMismatch, peer, "collective"};
    return {};
}

// All clocks have passed the last operation, and no rank starts the one after this before this rank
// has signalled: what the others called in the last one is there, and stays.
Result<void> check_last_operation(Operation& operation) {
    GroupState& group = operation.group;
    Meeting& meeting = operation.meeting();
    const TimePoint deadline = operation.call.deadline;
    for (int peer = 0; peer < operation.world(); ++peer) {
        // Once more by the clock itself: that a peer came this far may be known from its tiny lines
        // alone, and where hosts do not share caches those say nothing about its signature.
        if (peer != operation.rank())
            FABRIC_TRY_VOID(meeting.await(meeting.clock_of(peer), group.last_turn, peer, deadline));
        const auto theirs =
            meeting.words(peer).signature[operation.parity() ^ 1].load(std::memory_order_relaxed);
        if (theirs != group.last_signature) {
            return Error{Errc::kMismatch, peer, "collective: the one before this"};
        }
    }
    group.unchecked = false;
    return {};
}

Result<void> arrive(Operation& operation) {
    const GroupPlace& place = operation.group.place;
    const Call& call = operation.call;
    RankWords& words = operation.meeting().words(operation.rank());
    const std::size_t parity = operation.parity();
    const Bytes in = input_bytes(call, operation.rank(), operation.world());
    const Bytes out = output_bytes(call, operation.rank(), operation.world());
    // As in run_slots(): what is written here may still be read, if the last turn had no meeting.
    FABRIC_TRY_VOID(enter(operation));
    show_signature(operation);
    words.input_offset[parity].store(offset_of(place, call.input, in), std::memory_order_relaxed);
    words.output_offset[parity].store(offset_of(place, call.output, out),
                                      std::memory_order_relaxed);
    const Visibility& view = operation.meeting().view();
    // On coherent memory what the caller stored is visible by the step's release.
    if (!view.coherent()) view.publish(TouchPoint::kInput, call.input, in);
    operation.arrival = operation.next;
    FAULT_POINT("arrive.before");
    if (call.trigger == Trigger::kSync) {
        FABRIC_TRY_VOID(meet_on_command(operation));
    } else {
        FABRIC_TRY_VOID(operation.meet());
    }
    FAULT_POINT("arrive.met");
    operation.all_in_arena = true;
    for (int peer = 0; peer < operation.world(); ++peer) {
        FABRIC_TRY_VOID(read_peer(operation, peer));
    }
    return {};
}

}  // namespace fabricshm
