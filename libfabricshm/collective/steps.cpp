#include "libfabricshm/collective/steps.hpp"

#include <algorithm>

#include "libfabricshm/shm/group_block.hpp"

namespace fabricshm {

namespace {

// Of a post of the tiny engine: the flag's line, and what is not in it. Whole lines travel.
Bytes tiny_lines_bytes(Bytes bytes) noexcept {
    if (bytes <= kTinyLineBytes) return kCacheLine;
    const Bytes in_flag_line = bytes <= kTinyBytes ? kTinyLineBytes : 0;
    return kCacheLine + round_up(bytes - in_flag_line, kCacheLine);
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
    input.shared_output = call.shared_result;
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
    algorithm_ = choose_arrived(input, call.in_arena, tuning);
    const bool staged = algorithm_ == Algorithm::kStaged;
    if (staged) pieces_ = cut_staged(call.bytes, slot_bytes, tuning.piece_bytes);
    // As run_arrived() of group.cpp: what can't be done in place is done in the slots.
    on_slots_ = !call.in_arena && algorithm_ != Algorithm::kFlat && !staged;
    posted_early_ = !call.in_arena && !on_slots_ && call.trigger == Trigger::kAsync;
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
    if (algorithm_ == Algorithm::kRing) return 2 * (world - 1) + 2;
    // Host: rank 0 reduces, the others fetch, all wait.
    return algorithm_ == Algorithm::kHost ? 3 : 2;
}

std::uint64_t StepPlan::piece_steps() const noexcept {
    // Around the inner steps: into the slots and out of them.
    return algorithm_ == Algorithm::kFlat ? 2 : inner_steps() + 2;
}

std::uint64_t StepPlan::work_steps() const noexcept {
    // Before the first round of three steps a post, which may belong to the arrival.
    if (algorithm_ == Algorithm::kStaged) return 1 + 3 * (pieces_.count + 1);
    return in_pieces() ? pieces_.count * piece_steps() : inner_steps();
}

std::uint64_t StepPlan::step_count() const noexcept {
    if (route_ == Route::kTiny || route_ == Route::kTree) return 2;
    return arrival_steps() + work_steps() - (posted_early_ ? 1 : 0);
}

Bytes StepPlan::piece_bytes(std::uint64_t piece) const noexcept {
    // The last one may be shorter.
    return std::min(pieces_.stride, call_.bytes - piece * pieces_.stride);
}

Step StepPlan::step(int rank, std::uint64_t index) const noexcept {
    if (index < arrival_steps()) return arrival_step(rank, index);
    if (route_ == Route::kTiny) return tiny_step(index);
    if (route_ == Route::kTree) return tree_step(rank, index);
    index -= arrival_steps();
    if (posted_early_) ++index;
    if (algorithm_ == Algorithm::kStaged) return staged_step(rank, index);
    if (!in_pieces()) return inner_step(rank, index, call_.bytes);
    const Bytes bytes = piece_bytes(index / piece_steps());
    index %= piece_steps();
    return on_slots_ ? on_slots_step(rank, index, bytes) : slots_step(index, bytes);
}

Step StepPlan::arrival_step(int rank, std::uint64_t index) const noexcept {
    if (index == 0) {
        Step step;
        if (posted_early_ && algorithm_ == Algorithm::kFlat) step = slots_step(0, piece_bytes(0));
        if (posted_early_ && algorithm_ == Algorithm::kStaged) post_chunk(step, rank, 0);
        step.await = Await::kNothing;
        step.signals = true;
        return step;
    }
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

// As if rank 0 were right above all others. It has the values of all to read in any case; what a
// tree of domains adds are the lines on the way to it, and the domains are not known here.
Step StepPlan::tree_step(int rank, std::uint64_t index) const noexcept {
    const Bytes lines = tree_lines_for(call_.bytes) * kCacheLine;
    if (index == 0) {
        Step step = waiting_step(Await::kNothing, true);
        step.touch({Where::kInput, Whose::kOwn, call_.bytes, false, false});
        step.touch({Where::kLine, Whose::kOwn, lines, true, true});
        return step;
    }
    Step step = waiting_step(rank == 0 ? Await::kAll : Await::kCommand, false);
    step.commands = rank == 0;
    step.touch({Where::kLine, rank == 0 ? Whose::kOthers : Whose::kFirst, lines, false, true});
    step.touch({Where::kOutput, Whose::kOwn, call_.bytes, true, false});
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

void StepPlan::post_chunk(Step& step, int rank, std::uint64_t chunk) const noexcept {
    const Bytes bytes = piece_bytes(chunk);
    const Bytes others = bytes - share_of(bytes, rank, call_.world).size();
    step.touch({Where::kInput, Whose::kOwn, others, false, false});
    step.touch({Where::kSlot, Whose::kOwn, others, true, true});
}

void StepPlan::reduce_chunk(Step& step, int rank, std::uint64_t chunk) const noexcept {
    const Bytes share = share_of(piece_bytes(chunk), rank, call_.world).size();
    step.touch({Where::kInput, Whose::kOwn, share, false, false});
    step.touch({Where::kSlot, Whose::kOthers, share, false, true});
    step.touch({Where::kSlot, Whose::kOwn, share, true, true});
    step.touch({Where::kOutput, Whose::kOwn, share, true, false});
}

void StepPlan::fetch_chunk(Step& step, int rank, std::uint64_t chunk) const noexcept {
    const Bytes bytes = piece_bytes(chunk);
    const Bytes others = bytes - share_of(bytes, rank, call_.world).size();
    step.touch({Where::kSlot, Whose::kShares, others, false, true, bytes});
    step.touch({Where::kOutput, Whose::kOwn, others, true, false});
}

// Step 0 posts chunk 0. Then come the rounds of staged.cpp, from 1 on, in three steps each.
Step StepPlan::staged_step(int rank, std::uint64_t index) const noexcept {
    const std::uint64_t count = pieces_.count;
    const std::uint64_t round = index == 0 ? 0 : 1 + (index - 1) / 3;
    Step step;
    if (index == 0 || (index - 1) % 3 == 0) {
        step.await = round == 0 ? Await::kNothing : Await::kAll;
        step.signals = round == 0;
        if (round < count) post_chunk(step, rank, round);
    } else if ((index - 1) % 3 == 1) {
        step.signals = round <= count;
        if (round <= count) reduce_chunk(step, rank, round - 1);
    } else {
        if (round >= 2) fetch_chunk(step, rank, round - 2);
        step.signals = round == count + 1 && count > kStagedPerSlot;
    }
    return step;
}

Step StepPlan::on_slots_step(int rank, std::uint64_t index, Bytes bytes) const noexcept {
    if (index == 0) {
        Step step = waiting_step(Await::kAll, true);
        step.touch({Where::kInput, Whose::kOwn, bytes, false, false});
        step.touch({Where::kSlot, Whose::kOwn, bytes, true, true});
        return step;
    }
    if (index < 1 + inner_steps()) return inner_step(rank, index - 1, bytes);
    Step step;
    step.touch({Where::kSlot, Whose::kOwn, bytes, false, true});
    step.touch({Where::kOutput, Whose::kOwn, bytes, true, false});
    return step;
}

Step StepPlan::inner_step(int rank, std::uint64_t index, Bytes bytes) const noexcept {
    if (algorithm_ == Algorithm::kRing) return ring_step(rank, index, bytes);
    if (algorithm_ == Algorithm::kHost) return host_step(rank, index, bytes);
    return direct_step(rank, index, bytes);
}

Step StepPlan::direct_step(int rank, std::uint64_t index, Bytes bytes) const noexcept {
    Step step = waiting_step(Await::kAll, index == 0);
    // The second step is the wait for all.
    if (index != 0) return step;
    step.claimed = claims_;
    // Claimed chunks go to the rank that is first: any rank may touch all of them.
    const Bytes share = claims_ ? bytes : share_of(bytes, rank, call_.world).size();
    step.touch({Where::kInput, Whose::kEach, share, false, false});
    step.touch(
        {Where::kOutput, call_.shared_result ? Whose::kFirst : Whose::kEach, share, true, false});
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
    const Where result = on_slots_ ? Where::kSlot : Where::kOutput;
    const Where input = on_slots_ ? Where::kSlot : Where::kInput;
    Step step = waiting_step(index == 0 ? Await::kAll : Await::kBefore, true);
    // The first partial sum is the neighbour's input; later ones are where it stored them.
    step.touch(
        {index == 0 ? input : result, Whose::kBefore, share, false, index != 0 || on_slots_});
    if (adding) step.touch({input, Whose::kOwn, share, false, false});
    step.touch({result, Whose::kOwn, share, true, true});
    return step;
}

Step StepPlan::host_step(int rank, std::uint64_t index, Bytes bytes) const noexcept {
    Step step = waiting_step(Await::kAll, index < 2);
    const Where result = on_slots_ ? Where::kSlot : Where::kOutput;
    if (index == 0 && rank == 0) {
        step.touch(
            {on_slots_ ? Where::kSlot : Where::kInput, Whose::kEach, bytes, false, on_slots_});
        step.touch({result, Whose::kOwn, bytes, true, true});
    }
    if (index == 1 && rank != 0) {
        step.touch({result, Whose::kFirst, bytes, false, true});
        step.touch({result, Whose::kOwn, bytes, true, false});
    }
    return step;
}

}  // namespace fabricshm
