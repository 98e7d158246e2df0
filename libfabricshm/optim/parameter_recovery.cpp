// ParameterSet::recover(): what survivors do with a step in which a rank died.
//
// A rank touches parameters only after it has seen all ranks ready (and, in steps that clip or
// check, all shards measured). So the words of the ranks decide: if all are there, the step may
// have begun somewhere and is finished, with the gradients of all, the dead ranks' included; if
// not, it has begun nowhere and is dropped. The words of dead ranks do not change, those of
// survivors not before all have decided, and ranks that are neither are kept out by the era.

#include <algorithm>
#include <array>
#include <set>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/optim/gather.hpp"
#include "libfabricshm/optim/parameter_set.hpp"
#include "libfabricshm/os/poison.hpp"

namespace fabricshm {

namespace {

constexpr Error kCorruptRecord{Errc::kCorrupt, 0, "recover step: what a rank says of itself"};

}  // namespace

Result<ParameterSet::Survivors> ParameterSet::agree(Group& group, TimePoint deadline) const {
    const auto world = static_cast<std::size_t>(group.world());
    FABRIC_TRY(const auto all,
               gather(group, {static_cast<std::uint64_t>(slot()), attempts_}, deadline));
    Survivors found;
    std::set<int> distinct;
    for (std::size_t rank = 0; rank < world; ++rank) {
        if (all[2 * rank] >= static_cast<std::uint64_t>(spec_.slots)) return kCorruptRecord;
        found.slots.push_back(static_cast<int>(all[2 * rank]));
        distinct.insert(found.slots.back());
        found.number = std::max(found.number, all[2 * rank + 1]);
    }
    const bool members = std::ranges::all_of(found.slots, [&](int slot) {
        return std::ranges::find(words_.members(), slot) != words_.members().end();
    });
    const bool own = found.slots[static_cast<std::size_t>(group.rank())] == slot();
    if (distinct.size() != world || !members || !own) return kCorruptRecord;
    return found;
}

// On return no rank that is not in `group` is inside, or will be.
Result<void> ParameterSet::keep_out_absent(Group& group, Survivors& survivors, TimePoint deadline) {
    // A rank that the others have given up in agree() may still find there what they have said. It
    // does not come through this barrier, and must not raise the era under those that went on.
    FABRIC_TRY_VOID(pass_barrier(group, deadline));
    if (group.rank() == 0) words_.send_away();
    FABRIC_TRY_VOID(pass_barrier(group, deadline));
    // Some of the time is for saying so.
    const Duration left = std::max(deadline - Clock::now(), Duration::zero());
    const auto absent = words_.await_absent(survivors.slots, deadline - left / 8);
    // Now: no rank raises it before all of these have come further or given up. A rank that reads
    // it after others had given it up would take their next era for its own.
    survivors.era = words_.era();
    const std::uint64_t stuck =
        absent.ok() ? 0 : 1 + static_cast<std::uint64_t>(absent.error().detail);
    // All give up or none does: a rank that called again would meet the others in another barrier,
    // and they would take its shard for done.
    FABRIC_TRY(const auto all, gather(group, {stuck}, deadline));
    FABRIC_TRY_VOID(absent);
    for (const std::uint64_t other : all) {
        if (other == 0) continue;
        return explain({Errc::kTimeout, static_cast<int>(other - 1), "recover step"},
                       "another rank found slot %d alive and in the middle of the step; end its "
                       "process, and call again",
                       static_cast<int>(other - 1));
    }
    survivors.last =
        std::max(survivors.number, words_.header().resolved.load(std::memory_order_acquire));
    for (const int slot : words_.members()) {
        // Acquire, as everywhere. The words of ranks that are not there do not change any more.
        const SlotRecord& of = words_.record(slot);
        survivors.last = std::max(survivors.last, of.ready.load(std::memory_order_acquire));
    }
    return {};
}

// Whether the attempt is applied: its shards are finished, this rank's own and those of ranks that
// are not there any more, which the survivors share out.
Result<bool> ParameterSet::finish(Group& group, const Survivors& survivors) {
    const std::uint64_t number = survivors.number;
    if (words_.all_have(StepWord::kDone, number)) return true;
    if (!pending_ || pending_->number != number) return false;
    const Attempt& what = *pending_;
    if (!words_.all_have(StepWord::kReady, number)) return false;
    if (!compare(what).ok()) return false;
    if (what.call.measures() && !words_.all_have(StepWord::kMeasured, number)) return false;
    step_.begin(what.call, number, applied_ + 1);
    const StepVerdict verdict = step_.judge(what.call);
    int absent = 0;
    for (std::size_t rank = 0; rank < words_.members().size(); ++rank) {
        const int slot = words_.members()[rank];
        const auto found = std::ranges::find(survivors.slots, slot);
        int by = static_cast<int>(found - survivors.slots.begin());
        if (found == survivors.slots.end()) by = absent++ % group.world();
        SlotRecord& of = words_.record(slot);
        if (by != group.rank() || of.done.load(std::memory_order_acquire) >= number) continue;
        FAULT_POINT("recover.shard");
        if (!verdict.skipped) FABRIC_TRY_VOID(step_.run(number, verdict, shards_[rank], slot));
        // Relaxed: the release of `done` makes it visible before.
        of.applied.store(applied_ + (verdict.skipped ? 0 : 1), std::memory_order_relaxed);
        words_.raise(group, slot, StepWord::kDone, number);
    }
    return true;
}

Result<RecoverReport> ParameterSet::recover(Group& group, TimePoint deadline) {
    // Others wait for this rank as if it were in a step. It need not ask for the era: if it does
    // not belong to `group`, nothing of it goes on here.
    words_.own().inside.store(1, std::memory_order_seq_cst);
    const PoisonGuard guard;
    Result<RecoverReport> report = recover_in(group, deadline);
    if (const auto state = group.intact(guard); !state.ok()) report = state.error();
    // The others wait for this rank, which does not go on.
    if (!report.ok() && report.error().code == Errc::kCorrupt) group.retire();
    words_.leave();
    return report;
}

// Whether an attempt before the last one was done: a rank begins the next one when it is, or when
// it found that ranks had called it with other values.
Result<bool> ParameterSet::was_done(std::uint64_t number) const {
    if (words_.all_have(StepWord::kDone, number)) return true;
    if (compare(*pending_).ok()) {
        return Error{Errc::kCorrupt, slot(), "recover step: the words of the slots"};
    }
    return false;
}

// The same on all ranks; what an attempt of this rank's own was that the others know nothing of is
// this rank's to find.
Result<ParameterSet::Decision> ParameterSet::decide(Group& group, const Survivors& survivors) {
    const std::uint64_t own = pending_ ? pending_->number : 0;
    // Acquire: with `resolved`, what was decided is visible.
    const std::uint64_t resolved = words_.header().resolved.load(std::memory_order_acquire);
    const bool all_kept = resolved >= survivors.number;
    // Another recovery came so far, and its last barrier did not reach all ranks; those that it
    // reached may have called another step since, which can't have begun without this rank.
    if (all_kept || (own != 0 && own < survivors.number && own <= resolved)) {
        const std::uint64_t steps = words_.header().applied.load(std::memory_order_acquire);
        return Decision{own != 0 && steps > applied_, steps, all_kept};
    }
    bool done = false;
    if (own != 0 && own < survivors.number) {
        FABRIC_TRY(done, was_done(own));
    } else {
        FABRIC_TRY(done, finish(group, survivors));
    }
    Decision decision{false, applied_, false};
    if (!done || !pending_) return decision;
    step_.begin(pending_->call, own, applied_ + 1);
    decision.applied = !step_.judge(pending_->call).skipped;
    decision.steps += decision.applied ? 1 : 0;
    return decision;
}

Result<RecoverReport> ParameterSet::recover_in(Group& group, TimePoint deadline) {
    FABRIC_TRY(Survivors survivors, agree(group, deadline));
    FAULT_POINT("recover.agreed");
    FABRIC_TRY_VOID(keep_out_absent(group, survivors, deadline));
    FABRIC_TRY(const Decision decision, decide(group, survivors));
    if (!decision.is_kept) {
        FABRIC_TRY_VOID(pass_barrier(group, deadline));
        FAULT_POINT("recover.finished");
        if (group.rank() == 0) {
            words_.header().applied.store(decision.steps, std::memory_order_relaxed);
            // Release: with it, the number of steps is visible.
            words_.header().resolved.store(survivors.last, std::memory_order_release);
        }
    }
    FABRIC_TRY_VOID(pass_barrier(group, deadline));
    // Past every number that a rank has used, here or not: which words belong to an attempt can be
    // said of a set that is found without its ranks.
    attempts_ = survivors.last;
    applied_ = decision.steps;
    adopt(group, survivors.slots, survivors.era);
    return RecoverReport{decision.steps, decision.applied};
}

}  // namespace fabricshm
