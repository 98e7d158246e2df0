// How the kernels of a group's ranks find each other: arrival, what each shows, the end, and every
// way out of a wait. docs/cuda.md has it in prose.
//
// A grid works as one rank. The first block that starts is the leader: its first thread arrives for
// the rank, waits for the peers, checks what they show and opens the operation for the other blocks
// (GridWords::go). The last block that is done ends it. No block waits for one that has not
// started, but for the leader, which is the first; so a grid needs no more than one resident block.
// Before all that it passes the gate (gate_body.hpp).

#pragma once

#include "kernels/cuda/gate_body.hpp"
#include "kernels/cuda/reduce_body.hpp"
#include "kernels/cuda/span_body.hpp"

namespace kernels::cuda {

constexpr Address rank_words(const GroupArgs& group, int rank) {
    return group.block + sizeof(DeviceGroupHeader) +
           static_cast<std::uint64_t>(rank) * sizeof(DeviceRankWords);
}

/// An epoch in the upper half and a sequence in the lower, which may wrap.
constexpr std::uint64_t make_turn(std::uint32_t epoch, std::uint32_t sequence) {
    return std::uint64_t{epoch} << 32 | sequence;
}
constexpr std::uint32_t sequence_of(std::uint64_t turn) {
    return static_cast<std::uint32_t>(turn);
}
/// Whether a rank whose word is `seen` has come to `turn`: of the same epoch, and not before it.
constexpr bool has_come(std::uint64_t seen, std::uint64_t turn) {
    const bool same_epoch = seen >> 32 == turn >> 32;
    return same_epoch && static_cast<std::int32_t>(sequence_of(seen) - sequence_of(turn)) >= 0;
}

/// A word of the ring: the lower bits of the epoch, the sequence, and how many steps were done.
/// Ranks in the same operation have the same turn, so that any other is one of before.
constexpr std::uint64_t make_steps(std::uint64_t turn, std::uint64_t steps) {
    return turn << 16 | steps;
}
constexpr bool has_stepped(std::uint64_t seen, std::uint64_t turn, std::uint64_t steps) {
    return seen >> 16 == make_steps(turn, 0) >> 16 && (seen & 0xffff) >= steps;
}

/// What an operation needs of every rank, beyond the words.
struct Call {
    std::uint64_t signature;             // of all that ranks have to call alike; never 0
    std::uint64_t element_bytes;         // what places of inputs have to be aligned to
    std::uint64_t output_element_bytes;  // and those of outputs
    std::uint64_t input_bytes;   // that each rank has to show; 0: inputs are not read by peers
    std::uint64_t output_bytes;  // likewise of what peers write
    int only_input_of;           // -1: of all ranks
    // What this rank takes of inputs with a part for each rank: its own part of so many bytes; 0:
    // inputs have no parts.
    std::uint64_t part_bytes;
    std::uint64_t stride;   // from part to part where a place is kApart, and of this rank's own; 0:
                            // they are next to each other
    Address input, output;  // this rank's own
    Place shown_input, shown_output;
};

/// Mixes one more value into a signature (splitmix64's finaliser).
constexpr std::uint64_t mix(std::uint64_t signature, std::uint64_t value) {
    std::uint64_t mixed = signature + value + 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

namespace detail {

constexpr Space space_of(Place place) {
    return static_cast<Space>(place >> kSpaceShift);
}
constexpr std::uint64_t offset_of(Place place) {
    return place & (kApart - 1);
}
constexpr bool is_apart(Place place) {
    return (place & kApart) != 0;
}

struct Resolved {
    Outcome outcome;
    Address address;  // 0: private
};

// Where this rank reaches `bytes` that `rank` shows at `place`. The place is any number: what it
// does not contain is checked here, before anything is read there.
constexpr Resolved resolve(const GroupArgs& group, int rank, Place place, std::uint64_t bytes,
                           std::uint64_t alignment) {
    const Space space = space_of(place);
    if (space == Space::kPrivate) return {Outcome::kOk, 0};
    if (space != Space::kPool && space != Space::kDevice) return {Outcome::kBadPlace, 0};
    const Window& window = space == Space::kPool ? group.pool : group.device[rank];
    if (window.bytes == 0) return {Outcome::kUnreachable, 0};
    const std::uint64_t offset = offset_of(place);
    if (offset > window.bytes || bytes > window.bytes - offset) return {Outcome::kBadPlace, 0};
    const Address address = window.base + offset;
    if (address % alignment != 0) return {Outcome::kBadPlace, 0};
    return {Outcome::kOk, address};
}

// Waits and words of one rank's part in one operation. Used by one thread.
template <class Grid>
class Part {
  public:
    constexpr Part(Grid& grid, const GroupArgs& group)
        : grid_(grid), group_(group), start_(grid.now_ns()) {}

    // A reason not to begin; fills in the turn.
    constexpr Report open(std::uint64_t& turn) {
        const Address header = group_.block;
        const bool fits =
            group_.world >= 1 && group_.world <= kMaxRanks && group_.rank >= 0 &&
            group_.rank < group_.world &&
            grid_.load_acquire(FABRIC_MEMBER(header, DeviceGroupHeader, magic)) ==
                kDeviceGroupMagic &&
            grid_.load_acquire32(FABRIC_MEMBER(header, DeviceGroupHeader, version)) ==
                kDeviceGroupVersion &&
            grid_.load_acquire32(FABRIC_MEMBER(header, DeviceGroupHeader, world)) ==
                static_cast<std::uint32_t>(group_.world) &&
            grid_.load_acquire32(FABRIC_MEMBER(header, DeviceGroupHeader, epoch)) == group_.epoch;
        if (!fits) return make_report(Outcome::kBadEpoch, group_.rank);
        if (grid_.load_acquire(word(group_.rank, kFailure)) != 0) {
            return make_report(Outcome::kBroken, group_.rank);
        }
        const std::uint64_t last = grid_.load_acquire(word(group_.rank, kArrived));
        const bool same_epoch = last >> 32 == group_.epoch;
        turn = make_turn(group_.epoch, same_epoch ? sequence_of(last) + 1 : 1);
        return 0;
    }

    constexpr void arrive(std::uint64_t turn, const Call& call) {
        const Address shown = shown_of(group_.rank, turn);
        grid_.store(FABRIC_MEMBER(shown, ShownOperation, signature), call.signature);
        grid_.store(FABRIC_MEMBER(shown, ShownOperation, input), call.shown_input);
        grid_.store(FABRIC_MEMBER(shown, ShownOperation, output), call.shown_output);
        // Release: a rank that acquires the turn sees what is shown, and the input, which the
        // kernels before this one in the stream, or the host, have written.
        grid_.store_release(word(group_.rank, kArrived), turn);
    }

    constexpr Report await_arrivals(std::uint64_t turn) { return await_all(kArrived, turn); }
    constexpr Report await_ends(std::uint64_t turn) { return await_all(kDone, turn); }

    // What a rank shows, copied once: it may change under our eyes, if the rank is out of order.
    // The arrival that was acquired before makes it visible; a rank comes to the next operation of
    // the same parity only when this one has ended on all ranks.
    constexpr ShownOperation read_shown(int rank, std::uint64_t turn) {
        const Address shown = shown_of(rank, turn);
        return {grid_.template load<std::uint64_t>(FABRIC_MEMBER(shown, ShownOperation, signature)),
                grid_.template load<std::uint64_t>(FABRIC_MEMBER(shown, ShownOperation, input)),
                grid_.template load<std::uint64_t>(FABRIC_MEMBER(shown, ShownOperation, output))};
    }

    // As await_arrivals(), of one step of the ring: until `peer` has done `steps` of a slice.
    constexpr Report await_steps(int peer, int slice, std::uint64_t turn, std::uint64_t steps) {
        const Address at = steps_of(peer, slice);
        return await(peer, [&] { return has_stepped(grid_.load_acquire(at), turn, steps); });
    }
    // Release: what this block stored in the slice comes before.
    constexpr void publish_steps(int slice, std::uint64_t turn, std::uint64_t steps) {
        grid_.store_release(steps_of(group_.rank, slice), make_steps(turn, steps));
    }

    // Release: what this grid stored in the peers' buffers, and its loads from them, come before.
    constexpr void end(std::uint64_t turn) { grid_.store_release(word(group_.rank, kDone), turn); }

    // A peer that comes later does not find that this rank has arrived: its memory may be
    // another's.
    constexpr void fail(Report report) {
        grid_.store_release(word(group_.rank, kFailure), report);
        grid_.store_release(word(group_.rank, kArrived), 0);
    }

  private:
    static constexpr std::uint64_t kArrived = offsetof(DeviceRankWords, arrived);
    static constexpr std::uint64_t kDone = offsetof(DeviceRankWords, done);
    static constexpr std::uint64_t kFailure = offsetof(DeviceRankWords, failure);
    // A poll of pool memory takes a GPU about a microsecond: the other words are looked at now and
    // then, which still is a thousand times a second and more.
    static constexpr unsigned kPollsPerCheck = 8;

    constexpr Address word(int rank, std::uint64_t offset) const {
        return rank_words(group_, rank) + offset;
    }
    constexpr Address shown_of(int rank, std::uint64_t turn) const {
        return FABRIC_MEMBER(rank_words(group_, rank), DeviceRankWords, shown) +
               (turn & 1) * sizeof(ShownOperation);
    }

    constexpr Address steps_of(int rank, int slice) const {
        return FABRIC_MEMBER(rank_words(group_, rank), DeviceRankWords, steps) +
               static_cast<std::uint64_t>(slice) * sizeof(std::uint64_t);
    }

    constexpr Report await_all(std::uint64_t which, std::uint64_t turn) {
        for (int peer = 0; peer < group_.world; ++peer) {
            if (peer == group_.rank) continue;
            const Address at = word(peer, which);
            const Report report =
                await(peer, [&] { return has_come(grid_.load_acquire(at), turn); });
            if (report != 0) return report;
        }
        return 0;
    }

    template <class Reached>
    constexpr Report await(int peer, Reached reached) {
        for (unsigned poll = 0;; ++poll) {
            if (reached()) return 0;
            if (poll % kPollsPerCheck == 0) {
                const Report report = reason_to_stop(peer);
                // It may have come and then ended between the two loads.
                if (report != 0) return reached() ? 0 : report;
            }
            grid_.pause(poll);
        }
    }

    constexpr Report reason_to_stop(int awaited) {
        const Report abort =
            grid_.load_acquire(FABRIC_MEMBER(group_.block, DeviceGroupHeader, abort));
        if (abort != 0) return make_report(Outcome::kAborted, rank_of(abort));
        // The one that is waited for, and the others in turn: they may have failed while that one,
        // alive, waits for them.
        looked_at_ = looked_at_ + 1 < group_.world ? looked_at_ + 1 : 0;
        for (const int rank : {awaited, looked_at_}) {
            if (rank == group_.rank) continue;
            const Report failure = grid_.load_acquire(word(rank, kFailure));
            if (failure != 0) return heard_of(failure, rank);
        }
        const bool late = grid_.now_ns() - start_ >= group_.timeout_ns;
        return late ? make_report(Outcome::kTimeout, awaited) : 0;
    }

    // What the failure of a peer means here. That a rank did not come, called something else, has
    // ended the group or left is the same for all, which then name that one; what is between two
    // ranks is said of the one that found it. The failure is another process's word.
    constexpr Report heard_of(Report failure, int peer) const {
        const Outcome outcome = outcome_of(failure);
        const int about = rank_of(failure);
        const bool is_for_all = outcome == Outcome::kTimeout || outcome == Outcome::kAborted ||
                                outcome == Outcome::kMismatch || outcome == Outcome::kPeerFailed ||
                                outcome == Outcome::kLeft;
        const bool is_other = about >= 0 && about < group_.world && about != group_.rank;
        if (is_for_all && is_other) return failure;
        // Where this rank differs from the peer, the peer differs from this one.
        const bool differs = outcome == Outcome::kMismatch;
        return make_report(differs ? Outcome::kMismatch : Outcome::kPeerFailed, peer);
    }

    Grid& grid_;
    const GroupArgs& group_;
    std::uint64_t start_;
    int looked_at_ = 0;
};

// What of an input's bytes is taken at `place`, and from where on.
struct Taken {
    std::uint64_t bytes;  // that have to be there
    std::uint64_t skip;
};
constexpr Taken taken_of(const Call& call, const GroupArgs& group, bool apart) {
    if (call.part_bytes == 0) return {call.input_bytes, 0};
    const std::uint64_t next = apart ? call.stride : call.part_bytes;
    return {static_cast<std::uint64_t>(group.world - 1) * next + call.part_bytes,
            static_cast<std::uint64_t>(group.rank) * next};
}

// Reads and checks what all ranks show; the grid's words receive where their buffers are.
template <class Grid>
constexpr Report look_up(Grid& grid, const GroupArgs& group, Part<Grid>& part, const Call& call,
                         std::uint64_t turn) {
    const Address inputs = FABRIC_MEMBER(group.grid, GridWords, inputs);
    const Address outputs = FABRIC_MEMBER(group.grid, GridWords, outputs);
    for (int rank = 0; rank < group.world; ++rank) {
        Address input = call.input + taken_of(call, group, call.stride != 0).skip;
        Address output = call.output;
        if (rank != group.rank) {
            const ShownOperation shown = part.read_shown(rank, turn);
            if (shown.signature != call.signature) {
                return make_report(Outcome::kMismatch, rank);
            }
            const bool reads = call.only_input_of < 0 || call.only_input_of == rank;
            const Taken taken = taken_of(call, group, is_apart(shown.input));
            const std::uint64_t bytes = reads ? taken.bytes : 0;
            Resolved in = {Outcome::kOk, 0};
            if (bytes != 0) in = resolve(group, rank, shown.input, bytes, call.element_bytes);
            if (bytes != 0 && in.address == 0 && in.outcome == Outcome::kOk) {
                in.outcome = Outcome::kUnreachable;
            }
            Resolved out = {Outcome::kOk, 0};
            if (call.output_bytes != 0) {
                out = resolve(group, rank, shown.output, call.output_bytes,
                              call.output_element_bytes);
            }
            if (in.outcome != Outcome::kOk) return make_report(in.outcome, rank);
            if (out.outcome != Outcome::kOk) return make_report(out.outcome, rank);
            input = in.address + taken.skip;
            output = out.address;
        }
        grid.store(inputs + static_cast<std::uint64_t>(rank) * sizeof(Address), input);
        grid.store(outputs + static_cast<std::uint64_t>(rank) * sizeof(Address), output);
    }
    return 0;
}

}  // namespace detail

constexpr Gate gate_of(const GroupArgs& group) {
    return {group.grid, group.status, group.counts};
}

/// Called by all threads of all blocks, first. The leader's first thread arrives and waits;
/// `prepare(part, turn)` may then look at what the ranks show and returns a Report: 0 opens the
/// operation.
template <class Grid, class Prepare>
constexpr Opened open_operation(Grid& grid, const GroupArgs& group, const Call& call,
                                Prepare prepare) {
    const auto open = [&](std::uint64_t& turn) -> Report {
        // Before the first access to the block, which may be gone.
        if (!pass_gate(grid, group.status)) return make_report(Outcome::kLeft, group.rank);
        detail::Part<Grid> part(grid, group);
        Report report = part.open(turn);
        if (report != 0) return report;
        part.arrive(turn, call);
        report = part.await_arrivals(turn);
        if (report == 0) report = detail::look_up(grid, group, part, call, turn);
        return report == 0 ? prepare(part, turn) : report;
    };
    return begin_grid(grid, group.grid, [&] {
        std::uint64_t turn = 0;
        const Report report = open(turn);
        grid.store(FABRIC_MEMBER(group.grid, GridWords, turn), turn);
        grid.store(FABRIC_MEMBER(group.grid, GridWords, report), report);
        return report == 0;
    });
}

/// By the first thread of a block that cannot go on, before close_operation(): the first such
/// block's reason is the operation's.
template <class Grid>
constexpr void give_up(Grid& grid, const GroupArgs& group, Report report) {
    const Address lead = FABRIC_MEMBER(group.grid, GridWords, lead);
    if (grid.fetch_add32(lead, 1) == 0) {
        grid.store(FABRIC_MEMBER(group.grid, GridWords, report), report);
    }
}

/// Called by all threads of all blocks, last. The last block ends the operation, waits until all
/// ranks have (their stores into this rank's output, their loads from its input), reports, and
/// leaves the grid's words as they were.
template <class Grid>
constexpr void close_operation(Grid& grid, const GroupArgs& group) {
    end_grid(grid, gate_of(group), [&] {
        const auto turn =
            grid.template load<std::uint64_t>(FABRIC_MEMBER(group.grid, GridWords, turn));
        auto report = grid.template load<Report>(FABRIC_MEMBER(group.grid, GridWords, report));
        detail::Part<Grid> part(grid, group);
        if (report == 0) {
            part.end(turn);
            report = part.await_ends(turn);
        }
        // Without a block of this epoch there is no word to write to, nor behind a closed gate; a
        // group that was broken says so.
        const bool says = report != 0 && outcome_of(report) != Outcome::kBadEpoch &&
                          outcome_of(report) != Outcome::kBroken &&
                          report != make_report(Outcome::kLeft, group.rank);
        if (says) part.fail(report);
        const Address first = FABRIC_MEMBER(group.status, StatusWords, report);
        if (report != 0 && grid.load_acquire(first) == 0) grid.store_release(first, report);
        if (report == 0) {
            const Address ended = FABRIC_MEMBER(group.status, StatusWords, operations);
            grid.store_release(ended, grid.load_acquire(ended) + 1);
        }
        grid.store_release(FABRIC_MEMBER(group.status, StatusWords, turn), turn);
    });
}

}  // namespace kernels::cuda
