#include "libfabricshm/optim/stale_steps.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/collective/barrier.hpp"
#include "libfabricshm/optim/agreement.hpp"
#include "libfabricshm/os/poison.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricshm {

namespace {

// The version of a rank that has finished: no rank is ahead of it.
constexpr std::uint64_t kFinished = std::numeric_limits<std::uint64_t>::max();
// Sets the attempts of pushes apart from those of steps, which count from 1: run() goes on with an
// attempt whose number it finds, and no push goes on with another one.
constexpr std::uint64_t kPushAttempt = std::uint64_t{1} << 62;
// How often a held range is asked for before this rank sleeps in between, and for how long. A range
// is held for the time of one pass over it: from microseconds to some milliseconds.
constexpr int kEagerRounds = 100;
constexpr auto kHeldPause = std::chrono::microseconds(50);

Word version_word(SlotRecord& record) noexcept {
    return {record.version, record.version_sleepers, TouchPoint::kStep, TouchPoint::kStepRead};
}

}  // namespace

StaleSteps::StaleSteps(ParameterSet& set) : set_(set), step_(set.step_) {
    step_.set_stage(nullptr);
    step_.set_members({set.slot()});
    // Relaxed: this rank's own word.
    version_ = set.words_.own().version.load(std::memory_order_relaxed);
}

SlotRecord& StaleSteps::record_of(int rank) const noexcept {
    return set_.words_.record(set_.words_.members()[static_cast<std::size_t>(rank)]);
}

// ---- ranges, one rank at a time ----

Result<void> StaleSteps::hold(SlotRecord& range, TimePoint deadline) const {
    const auto mine = static_cast<std::uint32_t>(set_.slot()) + 1;
    for (int round = 0;; ++round) {
        std::uint32_t holder = 0;
        // Acquire: with the word, what the rank that held it before has stored in the range.
        if (range.holder.compare_exchange_weak(holder, mine, std::memory_order_acquire,
                                               std::memory_order_relaxed)) {
            return {};
        }
        if (round < kEagerRounds) {
            std::this_thread::yield();
            continue;
        }
        if (holder != 0) FABRIC_TRY_VOID(check_holder(holder, deadline));
        std::this_thread::sleep_for(kHeldPause);
    }
}

// `holder` comes from shared memory.
Result<void> StaleSteps::check_holder(std::uint32_t holder, TimePoint deadline) const {
    const std::vector<int>& members = set_.words_.members();
    const auto found = std::ranges::find(members, static_cast<int>(holder - 1));
    if (found == members.end()) return Error{Errc::kCorrupt, 0, "push: the holder of a range"};
    const auto rank = static_cast<int>(found - members.begin());
    const ProcessIdentity process = process_of(set_.words_.record(*found));
    if (liveness_of(process) == Liveness::kDead) {
        return explain({Errc::kPeer, rank, "push"},
                       "rank %d (pid %d) died while it stepped a range, which is half stepped",
                       rank, process.pid);
    }
    if (Clock::now() < deadline) return {};
    return explain({Errc::kTimeout, rank, "push"}, "rank %d (pid %d) holds a range", rank,
                   process.pid);
}

// From this rank's own on, so that ranks that come together begin at different ones.
Result<void> StaleSteps::visit_ranges(TimePoint deadline, Duration& waited,
                                      const std::function<Result<void>(int rank)>& visit) {
    FABRIC_TRY_VOID(set_.words_.enter());
    const PoisonGuard guard;
    Result<void> done;
    for (int i = 0; done.ok() && i < set_.world(); ++i) {
        const int rank = (set_.rank() + i) % set_.world();
        SlotRecord& range = record_of(rank);
        const TimePoint asked = Clock::now();
        done = hold(range, deadline);
        waited += Clock::now() - asked;
        if (!done.ok()) break;
        done = visit(rank);
        // Release: all that this rank has stored in the range comes before.
        range.holder.store(0, std::memory_order_release);
    }
    if (const auto state = set_.words_.group().intact(guard); !state.ok()) done = state;
    set_.words_.leave();
    return done;
}

Result<void> StaleSteps::step_range(const StepCall& call, int rank) {
    SlotRecord& range = record_of(rank);
    // Relaxed, here and below: under the holder's word.
    const std::uint64_t served = range.served.load(std::memory_order_relaxed);
    if (served >= kMaxSteps) return Error{Errc::kCorrupt, 0, "push: the steps of a range"};
    const std::uint64_t before = range.started.load(std::memory_order_relaxed);
    const std::uint64_t number = kPushAttempt + served;
    const std::uint64_t steps = set_.steps() + served + 1;
    step_.begin(call, number, steps);
    FAULT_POINT("push.range");
    const int slot = set_.words_.members()[static_cast<std::size_t>(rank)];
    FABRIC_TRY_VOID(
        step_.run(number, step_.judge(call), set_.shards_[static_cast<std::size_t>(rank)], slot));
    range.served.store(served + 1, std::memory_order_relaxed);
    range.applied.store(steps, std::memory_order_relaxed);
    // Back, since nothing of a push goes on after a death: until here the set counts as left in the
    // middle of an attempt, and can't be opened again.
    range.started.store(before, std::memory_order_relaxed);
    return {};
}

Result<PushReport> StaleSteps::push(const StepCall& call) {
    FABRIC_TRY_VOID(set_.check_call(call));
    if (call.measures()) {
        return explain({Errc::kInvalid, 0, "push"},
                       "a push is of one rank's gradient: it clips and checks nothing");
    }
    const TimePoint begun = Clock::now();
    SlotRecord& mine = set_.words_.own();
    mine.weight[0] = mine.weight[1] = call.weight;
    PushReport report;
    FABRIC_TRY_VOID(visit_ranges(call.deadline, report.waited,
                                 [&](int rank) { return step_range(call, rank); }));
    report.step = set_.steps() + mine.served.load(std::memory_order_relaxed);
    report.computed = Clock::now() - begun - report.waited;
    return report;
}

void StaleSteps::copy_range(const std::vector<float*>& values, int rank) const noexcept {
    const ElementRange range = set_.shards_[static_cast<std::size_t>(rank)];
    const std::vector<ElementRange>& pieces = set_.layout_.pieces;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const std::uint64_t begin = std::max(pieces[i].begin, range.begin);
        const std::uint64_t end = std::min(pieces[i].end, range.end);
        if (begin >= end) continue;
        const std::uint64_t offset = begin - pieces[i].begin;
        std::memcpy(values[i] + offset, set_.values(i) + offset, (end - begin) * sizeof(float));
    }
}

Result<void> StaleSteps::pull(const std::vector<float*>& values, TimePoint deadline) {
    if (values.size() != set_.spec_.parameters.size()) {
        return explain({Errc::kInvalid, 0, "pull"}, "%zu places for %zu parameters", values.size(),
                       set_.spec_.parameters.size());
    }
    Duration waited{};
    return visit_ranges(deadline, waited, [&](int rank) -> Result<void> {
        copy_range(values, rank);
        return {};
    });
}

// ---- versions ----

Result<std::uint64_t> StaleSteps::advance(std::uint64_t staleness, TimePoint deadline) {
    Group& group = set_.words_.group();
    std::uint64_t next = version_ + 1;
    for (int rank = 0; rank < set_.world(); ++rank) {
        // Relaxed: where this rank goes on decides nothing about memory; await() below does.
        const std::uint64_t theirs = record_of(rank).version.load(std::memory_order_relaxed);
        if (theirs == kFinished) continue;
        if (theirs > kMaxSteps) return Error{Errc::kCorrupt, rank, "advance: a version"};
        next = std::max(next, theirs);
    }
    // Raised before this rank waits: one that is behind goes on here then. The rank that is behind
    // all others never waits, so not all of them can.
    group.raise(version_word(set_.words_.own()), next);
    FAULT_POINT("push.version");
    const std::uint64_t oldest = next > staleness ? next - staleness : 0;
    for (int step = 1; step < set_.world(); ++step) {
        const int peer = (set_.rank() + step) % set_.world();
        FABRIC_TRY_VOID(group.await(version_word(record_of(peer)), oldest, peer, deadline));
    }
    version_ = next;
    return next;
}

Result<void> StaleSteps::finish(TimePoint deadline) {
    Group& group = set_.words_.group();
    SlotRecord& mine = set_.words_.own();
    group.raise(version_word(mine), kFinished);
    FABRIC_TRY_VOID(pass_barrier(group, deadline));
    // Every push has stepped every range: the barrier makes the last of them visible.
    const std::uint64_t steps = set_.steps() + mine.served.load(std::memory_order_relaxed);
    FABRIC_TRY_VOID(pass_barrier(group, deadline));
    FABRIC_TRY_VOID(set_.set_steps(std::min(steps, kMaxSteps)));
    // Relaxed: between two barriers.
    mine.served.store(0, std::memory_order_relaxed);
    mine.version.store(0, std::memory_order_relaxed);
    version_ = 0;
    return pass_barrier(group, deadline);
}

}  // namespace fabricshm
