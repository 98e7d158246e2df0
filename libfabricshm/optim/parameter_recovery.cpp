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
#include "libfabricshm/optim/parameter_set.hpp"
#include "libfabricshm/os/poison.hpp"

namespace fabricshm {

namespace {

constexpr Error kCorruptRecord{Errc::kCorrupt, 0, "recover step: what a rank says of itself"};

}  // namespace

Result<ParameterSet::Survivors> ParameterSet::agree(Group& group, TimePoint deadline) const {
    const auto world = static_cast<std::size_t>(group.world());
    const std::array<std::uint64_t, 2> mine{static_cast<std::uint64_t>(slot()), attempts_};
    std::vector<std::uint64_t> all(2 * world);
    Call call;
    call.kind = Kind::kAllGather;
    call.dtype = kernels::DType::kU64;
    call.count = mine.size();
    call.input = reinterpret_cast<const std::byte*>(mine.data());
    call.output = reinterpret_cast<std::byte*>(all.data());
    call.deadline = deadline;
    FABRIC_TRY_VOID(group.run(call));
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
    if (distinct.size() != world || !members) return kCorruptRecord;
    return found;
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
        words_.raise(group, slot, StepWord::kDone, number);
    }
    return true;
}

Result<RecoverReport> ParameterSet::recover(Group& group, TimePoint deadline) {
    // Others wait for this rank as if it were in a step. It need not ask for the era: if it does
    // not belong to `group`, nothing of it goes on here.
    words_.own().inside.store(1, std::memory_order_seq_cst);
    const PoisonGuard guard;
    Result<RecoverReport> report = decide(group, deadline);
    if (const auto state = group.intact(guard); !state.ok()) report = state.error();
    words_.leave();
    return report;
}

Result<RecoverReport> ParameterSet::decide(Group& group, TimePoint deadline) {
    FABRIC_TRY(const Survivors survivors, agree(group, deadline));
    FAULT_POINT("recover.agreed");
    if (group.rank() == 0) words_.send_away();
    FABRIC_TRY_VOID(pass_barrier(group, deadline));
    FABRIC_TRY_VOID(words_.await_absent(survivors.slots, deadline));
    // Acquire: with `resolved`, what was decided is visible.
    bool applied = false;
    std::uint64_t steps = applied_;
    if (words_.header().resolved.load(std::memory_order_acquire) >= survivors.number) {
        // Another recovery came so far, and its last barrier did not reach all ranks.
        steps = words_.header().applied.load(std::memory_order_acquire);
        applied = steps > applied_;
    } else {
        // An attempt before the last one is done everywhere: a rank begins the next one only then.
        const std::uint64_t own = pending_ ? pending_->number : 0;
        bool done = false;
        if (own != 0 && own < survivors.number) {
            done = words_.all_have(StepWord::kDone, own);
            if (!done) return Error{Errc::kCorrupt, slot(), "recover step: the words of the slots"};
        } else {
            FABRIC_TRY(done, finish(group, survivors));
        }
        if (done && pending_) {
            step_.begin(pending_->call, pending_->number, applied_ + 1);
            const bool skipped = step_.judge(pending_->call).skipped;
            applied = !skipped;
            steps += skipped ? 0 : 1;
        }
        FABRIC_TRY_VOID(pass_barrier(group, deadline));
        FAULT_POINT("recover.finished");
        if (group.rank() == 0) {
            words_.header().applied.store(steps, std::memory_order_relaxed);
            // Release: with it, the number of steps is visible.
            words_.header().resolved.store(survivors.number, std::memory_order_release);
        }
    }
    FABRIC_TRY_VOID(pass_barrier(group, deadline));
    attempts_ = survivors.number;
    applied_ = steps;
    adopt(group, survivors.slots);
    return RecoverReport{steps, applied};
}

}  // namespace fabricshm
