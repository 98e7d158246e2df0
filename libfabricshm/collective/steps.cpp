#include "libfabricshm/collective/steps.hpp"

#include <algorithm>

#include "libfabricshm/shm/group_block.hpp"

namespace fabricshm {

namespace {

// As lines_for() of flat.cpp: the first line gives 8 bytes to the signature. Whole lines travel.
Bytes tiny_lines_bytes(Bytes bytes) noexcept {
    constexpr Bytes kData = sizeof(TinyLine::data);
    const Bytes lines = std::max<Bytes>((bytes + 8 + kData - 1) / kData, 1);
    return lines * sizeof(TinyLine);
}

Step waiting_step(Await await, bool signals) noexcept {
    Step step;
    step.await = await;
    step.signals = signals;
    return step;
}

PlanInput plan_input_of(const AllreduceCall& call) noexcept {
    PlanInput input;
    input.kind = Kind::kAllreduce;
    input.algorithm = call.algorithm;
    input.trigger = call.trigger;
    input.world = call.world;
    input.part_bytes = call.bytes;
    input.total_bytes = call.bytes;
    return input;
}

}  // namespace

StepPlan::StepPlan(const AllreduceCall& call, const Tuning& tuning, Bytes slot_bytes) noexcept
    : call_(call) {
    PlanInput input = plan_input_of(call);
    if (input.algorithm == Algorithm::kAuto) input.algorithm = tuning.forced;
    route_ = choose_route(input, tuning);
    pieces_ = cut_pieces(call.bytes, 1, slot_bytes, tuning.piece_bytes);
    if (route_ != Route::kArrive) return;
    algorithm_ = inner_ = choose_arrived(input, call.in_arena, tuning);
    // As run_arrived() of group.cpp: what can't be done in place is done in the slots.
    const bool on_slots = !call.in_arena && algorithm_ != Algorithm::kFlat;
    staged_ = on_slots || algorithm_ == Algorithm::kStaged;
    if (algorithm_ == Algorithm::kStaged) inner_ = Algorithm::kDirect;
    claims_ = algorithm_ == Algorithm::kDirect && call.bytes >= tuning.claim_from;
}

std::uint64_t StepPlan::arrival_steps() const noexcept {
    if (route_ != Route::kArrive) return 0;
    // sync: all say that they have come, then rank 0 commands.
    return call_.trigger == Trigger::kSync ? 2 : 1;
}

std::uint64_t StepPlan::inner_steps() const noexcept {
    const auto world = static_cast<std::uint64_t>(call_.world);
    // Rounds of adding, as many of handing on, then a signal and the wait for all.
    if (inner_ == Algorithm::kRing) return 2 * (world - 1) + 2;
    // Host: rank 0 reduces, the others fetch, all wait.
    return inner_ == Algorithm::kHost ? 3 : 2;
}

std::uint64_t StepPlan::piece_steps() const noexcept {
    // Around the inner steps: into the slots and out of them.
    return algorithm_ == Algorithm::kFlat ? 2 : inner_steps() + 2;
}

std::uint64_t StepPlan::step_count() const noexcept {
    if (route_ == Route::kTiny) return 2;
    const std::uint64_t work = in_pieces() ? pieces_.count * piece_steps() : inner_steps();
    return arrival_steps() + work;
}

Bytes StepPlan::piece_bytes(std::uint64_t piece) const noexcept {
    // The last one may be shorter.
    return std::min(pieces_.stride, call_.bytes - piece * pieces_.stride);
}

Step StepPlan::step(int rank, std::uint64_t index) const noexcept {
    if (index < arrival_steps()) return arrival_step(rank, index);
    if (route_ == Route::kTiny) return tiny_step(index);
    index -= arrival_steps();
    if (!in_pieces()) return inner_step(rank, index, call_.bytes);
    const Bytes bytes = piece_bytes(index / piece_steps());
    index %= piece_steps();
    return staged_ ? staged_step(rank, index, bytes) : slots_step(index, bytes);
}

Step StepPlan::arrival_step(int rank, std::uint64_t index) const noexcept {
    if (index == 0) return waiting_step(Await::kNothing, true);
    Step step = waiting_step(rank == 0 ? Await::kAll : Await::kCommand, false);
    step.commands = rank == 0;
    return step;
}

Step StepPlan::tiny_step(std::uint64_t index) const noexcept {
    Step step = waiting_step(index == 0 ? Await::kNothing : Await::kAll, index == 0);
    const Bytes lines = tiny_lines_bytes(call_.bytes);
    step.touch({Where::kInput, Whose::kOwn, call_.bytes, false, false});
    if (index == 0) {
        step.touch({Where::kLine, Whose::kOwn, lines, true, true});
    } else {
        step.touch({Where::kLine, Whose::kOthers, lines, false, true});
        step.touch({Where::kOutput, Whose::kOwn, call_.bytes, true, false});
    }
    return step;
}

Step StepPlan::slots_step(std::uint64_t index, Bytes bytes) const noexcept {
    Step step = waiting_step(Await::kAll, index == 0);
    step.touch({Where::kInput, Whose::kOwn, bytes, false, false});
    if (index == 0) {
        step.touch({Where::kSlot, Whose::kOwn, bytes, true, true});
    } else {
        step.touch({Where::kSlot, Whose::kOthers, bytes, false, true});
        step.touch({Where::kOutput, Whose::kOwn, bytes, true, false});
    }
    return step;
}

Step StepPlan::staged_step(int rank, std::uint64_t index, Bytes bytes) const noexcept {
    if (index == 0) {
        Step step = waiting_step(Await::kAll, true);
        step.touch({Where::kInput, Whose::kOwn, bytes, false, false});
        step.touch({Where::kSlot, Whose::kOwn, bytes, true, true});
        return step;
    }
    if (index < 1 + inner_steps()) return inner_step(rank, index - 1, bytes);
    Step step;
    // direct leaves one result, with the first rank; ring and host leave one with each.
    const Whose holder = inner_ == Algorithm::kDirect ? Whose::kFirst : Whose::kOwn;
    step.touch({Where::kSlot, holder, bytes, false, true});
    step.touch({Where::kOutput, Whose::kOwn, bytes, true, false});
    return step;
}

Step StepPlan::inner_step(int rank, std::uint64_t index, Bytes bytes) const noexcept {
    if (inner_ == Algorithm::kRing) return ring_step(rank, index, bytes);
    if (inner_ == Algorithm::kHost) return host_step(rank, index, bytes);
    return direct_step(rank, index, bytes);
}

Step StepPlan::direct_step(int rank, std::uint64_t index, Bytes bytes) const noexcept {
    Step step = waiting_step(Await::kAll, index == 0);
    // The second step is the wait for everybody.
    if (index != 0) return step;
    step.claimed = claims_;
    // Claimed chunks go to whoever is first: any rank may touch all of them.
    const Bytes share = claims_ ? bytes : share_of(bytes, rank, call_.world).size();
    const bool one_result = staged_ || call_.shared_result;
    step.touch({staged_ ? Where::kSlot : Where::kInput, Whose::kEach, share, false, staged_});
    step.touch({staged_ ? Where::kSlot : Where::kOutput, one_result ? Whose::kFirst : Whose::kEach,
                share, true, staged_});
    return step;
}

Step StepPlan::ring_step(int rank, std::uint64_t index, Bytes bytes) const noexcept {
    const int world = call_.world;
    const auto rounds = static_cast<std::uint64_t>(world) - 1;
    if (index >= 2 * rounds) {
        const bool last = index > 2 * rounds;
        return waiting_step(last ? Await::kAll : Await::kNothing, !last);
    }
    const bool adding = index < rounds;
    const int round = static_cast<int>(adding ? index : index - rounds);
    // What comes to this rank in this round; C++'s % of a negative number is negative.
    const int chunk = ((rank - round - (adding ? 1 : 0)) % world + world) % world;
    const Bytes share = share_of(bytes, chunk, world).size();
    const Where result = staged_ ? Where::kSlot : Where::kOutput;
    const Where input = staged_ ? Where::kSlot : Where::kInput;
    Step step = waiting_step(index == 0 ? Await::kAll : Await::kBefore, true);
    // The first partial sum is the neighbour's input; later ones are where it stored them.
    step.touch({index == 0 ? input : result, Whose::kBefore, share, false, index != 0 || staged_});
    if (adding) step.touch({input, Whose::kOwn, share, false, false});
    step.touch({result, Whose::kOwn, share, true, true});
    return step;
}

Step StepPlan::host_step(int rank, std::uint64_t index, Bytes bytes) const noexcept {
    Step step = waiting_step(Await::kAll, index < 2);
    const Where result = staged_ ? Where::kSlot : Where::kOutput;
    if (index == 0 && rank == 0) {
        step.touch({staged_ ? Where::kSlot : Where::kInput, Whose::kEach, bytes, false, staged_});
        step.touch({result, Whose::kOwn, bytes, true, true});
    }
    if (index == 1 && rank != 0) {
        step.touch({result, Whose::kFirst, bytes, false, true});
        step.touch({result, Whose::kOwn, bytes, true, false});
    }
    return step;
}

}  // namespace fabricshm
