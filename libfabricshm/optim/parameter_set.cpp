#include "libfabricshm/optim/parameter_set.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/optim/agreement.hpp"
#include "libfabricshm/os/poison.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricshm {

namespace {

constexpr Error kBadStep{Errc::kInvalid, 0, "step"};

std::uint64_t mixed(std::uint64_t seed, double value) noexcept {
    seed = (seed ^ std::bit_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15;
    return seed ^ seed >> 32;
}

// Of all that has to be the same on all ranks.
std::uint64_t signature_of(const StepCall& call, std::uint64_t applied,
                           const std::vector<double>& shares) noexcept {
    std::uint64_t seed = 0x5354455031 + applied;
    for (const kernels::Hyper& hyper : call.hyper) {
        for (const double value : {hyper.learning_rate, hyper.beta1, hyper.beta2, hyper.epsilon,
                                   hyper.weight_decay, hyper.momentum, hyper.dampening}) {
            seed = mixed(seed, value);
        }
        seed = mixed(seed, hyper.nesterov ? 1 : 0);
        seed = mixed(seed, hyper.maximize ? 1 : 0);
        seed = mixed(seed, hyper.decoupled ? 1 : 0);
    }
    seed = mixed(seed, call.scale);
    seed = mixed(seed, call.clip_norm);
    seed = mixed(seed, call.skip_nonfinite ? 1 : 0);
    for (const double share : shares) seed = mixed(seed, share);
    return seed;
}

Result<const ParameterHeader*> header_of(const std::byte* memory, Bytes bytes) {
    const auto* header = reinterpret_cast<const ParameterHeader*>(memory);
    if (bytes >= sizeof *header && header->magic == kParameterMagic) return header;
    return explain({Errc::kExists, 0, "shared parameters"},
                   "the tensor of this name is no set of parameters");
}

}  // namespace

ParameterSet::ParameterSet(Visibility view, std::byte* memory, ParameterSpec spec)
    : memory_(memory),
      spec_(std::move(spec)),
      layout_(ParameterLayout::of(spec_)),
      step_(spec_, layout_, memory, view),
      words_(memory, layout_.slots) {}

ParameterSet::~ParameterSet() {
    words_.give_up_slot();
}

void ParameterSet::format(std::byte* memory, const ParameterSpec& spec) {
    const ParameterLayout layout = ParameterLayout::of(spec);
    // The gradients are cleared by their own ranks, which then have their pages near.
    std::memset(memory, 0, layout.gradients);
    auto& header = *reinterpret_cast<ParameterHeader*>(memory);
    header.magic = kParameterMagic;
    header.signature = fabricshm::signature_of(spec);
    header.total = layout.total;
    header.slots = static_cast<std::uint64_t>(spec.slots);
}

Result<void> ParameterSet::check(const Visibility& view, const std::byte* memory, Bytes bytes,
                                 const ParameterSpec& spec) {
    FABRIC_TRY_VOID(check_spec(spec));
    // Owners of slots are processes, which are looked up by their numbers.
    if (!view.coherent() || !view.one_kernel()) {
        return explain(
            {Errc::kUnsupported, 0, "shared parameters"},
            "the ranks' memory is that of several hosts; parameters can be shared by the ranks "
            "of one coherent host");
    }
    FABRIC_TRY(const ParameterHeader* header, header_of(memory, bytes));
    if (header->signature != fabricshm::signature_of(spec)) {
        return explain({Errc::kMismatch, -1, "shared parameters"},
                       "the set was made of other parameters, types or slots");
    }
    if (bytes < ParameterLayout::of(spec).total) {
        return Error{Errc::kCorrupt, 0, "shared parameters: too short"};
    }
    return {};
}

Result<void> check_closed(const std::byte* memory, Bytes bytes) {
    FABRIC_TRY(const ParameterHeader* header, header_of(memory, bytes));
    const auto* records = reinterpret_cast<const SlotRecord*>(memory + sizeof *header);
    const Bytes room = (bytes - sizeof *header) / sizeof(SlotRecord);
    for (Bytes slot = 0; slot < std::min(header->slots, room); ++slot) {
        const ProcessIdentity process = process_of(records[slot]);
        if (process.pid == 0 || liveness_of(process) == Liveness::kDead) continue;
        return explain({Errc::kBusy, 0, "shared parameters"},
                       "the process of slot %llu (pid %d) has the set open",
                       static_cast<unsigned long long>(slot), process.pid);
    }
    return {};
}

Result<std::unique_ptr<ParameterSet>> ParameterSet::attach(Group& group, Visibility view,
                                                           std::byte* memory, Bytes bytes,
                                                           ParameterSpec spec, TimePoint deadline) {
    FABRIC_TRY_VOID(check(view, memory, bytes, spec));
    if (group.world() > spec.slots) {
        return explain({Errc::kInvalid, 0, "shared parameters"}, "%d ranks, and slots for %d",
                       group.world(), spec.slots);
    }
    FABRIC_TRY(const ProcessIdentity self, own_identity());
    auto set = std::unique_ptr<ParameterSet>(new ParameterSet(view, memory, std::move(spec)));
    std::vector<int> slots;
    for (int rank = 0; rank < group.world(); ++rank) slots.push_back(rank);
    set->adopt(group, std::move(slots), 0);
    FABRIC_TRY_VOID(set->take_over(deadline));
    set->words_.take_slot(self);
    std::memset(memory + set->layout_.gradients +
                    static_cast<Bytes>(set->slot()) * set->layout_.gradient_stride,
                0, set->layout_.gradient_stride);
    FABRIC_TRY_VOID(pass_barrier(group, deadline));
    return set;
}

// From whatever group had the set before, if any: attempts and steps are counted on from its own.
Result<void> ParameterSet::take_over(TimePoint deadline) {
    std::uint64_t newest = 0;  // attempt that any shard was stepped for
    // Acquire, here and below: what was stored before the words is visible with them.
    attempts_ = words_.header().resolved.load(std::memory_order_acquire);
    applied_ = words_.header().applied.load(std::memory_order_acquire);
    for (int slot = 0; slot < spec_.slots; ++slot) {
        const SlotRecord& of = words_.record(slot);
        const ProcessIdentity process = process_of(of);
        if (of.inside.load(std::memory_order_acquire) != 0 &&
            liveness_of(process) != Liveness::kDead) {
            return explain({Errc::kBusy, 0, "shared parameters"},
                           "the process of slot %d (pid %d) is in the middle of a step", slot,
                           process.pid);
        }
        const std::uint64_t started = of.started.load(std::memory_order_acquire);
        if (started > of.done.load(std::memory_order_acquire)) {
            return explain({Errc::kCorrupt, 0, "shared parameters"},
                           "slot %d was left in the middle of step attempt %llu", slot,
                           static_cast<unsigned long long>(started));
        }
        newest = std::max(newest, started);
        attempts_ = std::max(attempts_, of.ready.load(std::memory_order_acquire));
        applied_ = std::max(applied_, of.applied.load(std::memory_order_acquire));
    }
    // The others of that attempt may have died before they began their shards.
    for (int slot = 0; slot < spec_.slots; ++slot) {
        const SlotRecord& of = words_.record(slot);
        if (of.ready.load(std::memory_order_acquire) < newest) continue;
        if (of.done.load(std::memory_order_acquire) >= newest) continue;
        return explain({Errc::kCorrupt, 0, "shared parameters"},
                       "step attempt %llu was left undone by slot %d",
                       static_cast<unsigned long long>(newest), slot);
    }
    // Ranks that have not closed the set find it gone.
    if (rank() == 0) words_.send_away();
    // No rank raises a word before all have read them.
    FABRIC_TRY_VOID(pass_barrier(words_.group(), deadline));
    // None of these ranks steps before all have come to the next barrier.
    adopt(words_.group(), words_.members(), words_.era());
    return {};
}

// The set belongs to `group` from here on; `slots` of its ranks.
void ParameterSet::adopt(Group& group, std::vector<int> slots, std::uint64_t era) {
    step_.settle();
    step_.set_members(slots);
    words_.adopt(group, std::move(slots), era);
    shares_.clear();
    shards_ = cut_shards(layout_.elements, shares_, group.world());
    pending_.reset();
}

float* ParameterSet::values(std::size_t index) const noexcept {
    return floats(layout_.parameters) + layout_.pieces[index].begin;
}

std::byte* ParameterSet::copy(std::size_t index) const noexcept {
    if (layout_.copy == 0) return nullptr;
    return memory_ + layout_.copy + layout_.pieces[index].begin * kernels::size_of(spec_.copy);
}

std::byte* ParameterSet::gradient(std::size_t index) const noexcept {
    return memory_ + layout_.gradients + static_cast<Bytes>(slot()) * layout_.gradient_stride +
           layout_.pieces[index].begin * kernels::size_of(spec_.gradients);
}

float* ParameterSet::state(std::size_t index, int which) const noexcept {
    return floats(layout_.state[which]) + layout_.pieces[index].begin;
}

Result<void> ParameterSet::share(std::vector<double> shares) {
    if (pending_) return Error{Errc::kBroken, 0, "step: the one before failed"};
    if (shares.size() != static_cast<std::size_t>(world())) {
        return explain(kBadStep, "%zu shares for %d ranks", shares.size(), world());
    }
    double sum = 0;
    for (const double share : shares) {
        if (!(share >= 0) || !std::isfinite(share)) {
            return explain(kBadStep, "share %g is not a finite number from 0 on", share);
        }
        sum += share;
    }
    if (!(sum > 0) || !std::isfinite(sum)) return explain(kBadStep, "the shares add up to %g", sum);
    // Another rank may step what this one's snapshot still lacks, once this one is ready.
    step_.settle();
    shares_ = std::move(shares);
    shards_ = cut_shards(layout_.elements, shares_, world());
    return {};
}

Result<void> ParameterSet::set_steps(std::uint64_t steps) {
    if (steps > kMaxSteps) return explain(kBadStep, "steps is above 2^53");
    if (pending_) return Error{Errc::kBroken, 0, "step: the one before failed"};
    applied_ = steps;
    // Whatever was counted before, in any slot: the highest is taken by a group that goes on from
    // here. All ranks store the same. Release, as after a step.
    words_.header().applied.store(steps, std::memory_order_release);
    for (int slot = 0; slot < spec_.slots; ++slot) {
        words_.record(slot).applied.store(steps, std::memory_order_release);
    }
    return {};
}

Result<void> ParameterSet::check_call(const StepCall& call) const {
    const std::uint32_t most = *std::ranges::max_element(layout_.options);
    if (call.hyper.size() <= most) {
        return explain(kBadStep, "%zu sets of options; a parameter has options %u",
                       call.hyper.size(), most);
    }
    for (const kernels::Hyper& hyper : call.hyper) {
        if (const char* field = kernels::unusable_field(spec_.rule, hyper); field != nullptr) {
            return explain(kBadStep, "%s is out of its range", field);
        }
    }
    const auto fits = [](double value) { return std::isfinite(static_cast<float>(value)); };
    if (!fits(call.scale)) return explain(kBadStep, "scale %g is not a float32", call.scale);
    if (!std::isnan(call.weight) && !fits(call.weight)) {
        return explain(kBadStep, "weight %g is not a float32", call.weight);
    }
    if (!(call.clip_norm >= 0)) return explain(kBadStep, "clip_norm is below 0");
    return {};
}

Result<StepReport> ParameterSet::step(const StepCall& call) {
    FABRIC_TRY_VOID(check_call(call));
    if (pending_) return Error{Errc::kBroken, 0, "step: the one before failed"};
    if (is_half_restored_) {
        return explain({Errc::kBroken, 0, "step"},
                       "restoring a snapshot failed; what is in the set is no state of it");
    }
    FABRIC_TRY_VOID(words_.enter());
    Attempt what{attempts_ + 1, call, signature_of(call, applied_, shares_)};
    attempts_ = what.number;
    const PoisonGuard guard;
    Result<StepReport> report = attempt(what);
    if (const auto state = words_.group().intact(guard); !state.ok()) report = state.error();
    if (report.ok()) {
        applied_ = report->step;
    } else if (report.error().code != Errc::kMismatch) {
        pending_ = std::move(what);
    }
    words_.leave();
    return report;
}

Result<StepReport> ParameterSet::attempt(const Attempt& what) {
    const StepCall& call = what.call;
    const std::uint64_t number = what.number;
    const TimePoint begun = Clock::now();
    FAULT_POINT("step.begin");
    SlotRecord& mine = words_.own();
    mine.signature[number & 1] = what.signature;
    mine.weight[number & 1] = call.weight;
    words_.raise(StepWord::kReady, number);
    FAULT_POINT("step.ready");
    FABRIC_TRY_VOID(words_.await(StepWord::kReady, number, call.deadline));
    const TimePoint all_ready = Clock::now();
    FABRIC_TRY_VOID(compare(what));
    step_.begin(call, number, applied_ + 1);
    const ElementRange shard = this->shard();
    Duration waited = all_ready - begun;
    if (call.measures()) {
        step_.measure(call, shard, mine);
        words_.raise(StepWord::kMeasured, number);
        FAULT_POINT("step.measured");
        const TimePoint measured = Clock::now();
        FABRIC_TRY_VOID(words_.await(StepWord::kMeasured, number, call.deadline));
        waited += Clock::now() - measured;
    }
    const StepVerdict verdict = step_.judge(call);
    if (!verdict.skipped) FABRIC_TRY_VOID(step_.run(number, verdict, shard, slot()));
    FAULT_POINT("step.shard");
    const std::uint64_t steps = applied_ + (verdict.skipped ? 0 : 1);
    // Relaxed: the release of `done` makes it visible before.
    mine.applied.store(steps, std::memory_order_relaxed);
    words_.raise(StepWord::kDone, number);
    const TimePoint done = Clock::now();
    FABRIC_TRY_VOID(words_.await(StepWord::kDone, number, call.deadline));
    FAULT_POINT("step.done");
    const TimePoint end = Clock::now();
    waited += end - done;
    return StepReport{steps, verdict.skipped, verdict.norm, waited, end - begun - waited};
}

// All ranks find the same: none steps its shard when any two differ.
Result<void> ParameterSet::compare(const Attempt& what) const noexcept {
    for (int peer = 0; peer < world(); ++peer) {
        const SlotRecord& of = words_.record(words_.members()[static_cast<std::size_t>(peer)]);
        if (of.signature[what.number & 1] == what.signature) continue;
        return Error{Errc::kMismatch, peer, "step"};
    }
    return {};
}

}  // namespace fabricshm
