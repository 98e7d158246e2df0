#include "emu/sim/collective_run.hpp"

#include <algorithm>
#include <cmath>

#include "emu/sim/lockstep.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/proto/messages.hpp"
#include "libfabricshm/shm/group_block.hpp"

namespace emu {

using fabricshm::Algorithm;
using fabricshm::AllreduceCall;
using fabricshm::Await;
using fabricshm::Bytes;
using fabricshm::Step;
using fabricshm::StepPlan;
using fabricshm::Touch;
using fabricshm::Whose;

namespace {

// More steps than this, of all ranks together, are not run one by one: some seconds.
constexpr double kMaxSteps = 2e6;
constexpr std::uint64_t kPiecesRun = 8;

}  // namespace

Seconds barrier_end(const Fabric& fabric, int rank, Seconds since, Seconds last_seen) {
    const Seconds read = fabric.line_read(rank);
    const int others = fabric.world() - 1;
    const double turns = std::ceil(static_cast<double>(others) / fabric.topology().lines_in_flight);
    const Seconds all_words = std::max(turns * read, fabric.words_floor());
    // Words that came early are read while others are still awaited; the last one is read alone.
    return std::max(since + all_words, last_seen + read) + fabric.turn_taking(rank);
}

CollectiveRun::CollectiveRun(Fabric& fabric, const StepPlan& plan, std::uint64_t pieces)
    : fabric_(fabric), plan_(plan), steps_(plan.step_count()) {
    if (plan.in_pieces() && pieces != 0 && pieces < plan.pieces().count) {
        // Whole pieces are left out, from the end: what comes before the first one stays.
        const std::uint64_t all = plan.pieces().count;
        const std::uint64_t each = plan.step_count() / all;  // the arrival's steps are fewer
        steps_ = plan.step_count() - (all - pieces) * each;
    }
    ranks_.resize(at(fabric.world()));
}

RunResult CollectiveRun::run(const std::vector<Seconds>& arrivals) {
    const int world = fabric_.world();
    result_.ended.assign(at(world), 0);
    // An arrival is an event like any other, so that late ranks need no case of their own.
    for (int rank = 0; rank < world; ++rank) {
        const Seconds arrival = arrivals.empty() ? 0 : arrivals[at(rank)];
        result_.first_arrival = rank == 0 ? arrival : std::min(result_.first_arrival, arrival);
        result_.last_arrival = std::max(result_.last_arrival, arrival);
        queue_.schedule(arrival, kArrive, rank);
    }
    Fluid& fluid = fabric_.fluid();
    while (!queue_.empty() || !fluid.idle()) {
        // Two clocks make one: the queue knows when waits end, the fluid when transfers do.
        // Whichever is first moves both.
        const Seconds next = std::min(queue_.next_at(), fluid.next_end());
        // Infinite: every rank waits for another, which a plan of the library never does.
        FABRIC_CHECK(std::isfinite(next));
        fluid.advance(next);
        queue_.move_to(next);
        for (const int rank : fluid.take_ended()) {
            ++result_.events;
            finish_step(rank, next);
        }
        // All of one moment before the rates are computed again.
        // Ranks that begin at the same moment share links from the first byte on; with rates
        // computed after each, the first would run ahead.
        while (!queue_.empty() && queue_.next_at() <= next) {
            const Event event = queue_.pop();
            if (event.kind == kArrive) enter(event.who, event.at);
            if (event.kind == kWork) begin_work(event.who);
            if (event.kind == kGoOn) finish_step(event.who, event.at);
        }
    }
    result_.events += queue_.popped();
    for (const Seconds end : result_.ended) result_.last_end = std::max(result_.last_end, end);
    return std::move(result_);
}

// Begins the step that the rank's index says, or ends the rank.
void CollectiveRun::enter(int rank, Seconds now) {
    RankState& state = ranks_[at(rank)];
    // `steps_` may be less than the plan has, see the constructor.
    if (state.index == steps_) {
        result_.ended[at(rank)] = now;
        return;
    }
    state.step = plan_.step(rank, state.index);
    state.since = now;
    Seconds when = now;
    state.waiting = !may_go(rank, when);
    if (!state.waiting) queue_.schedule(when, kWork, rank);
}

// Whether the wait of the rank's step is over; if so, when.
bool CollectiveRun::may_go(int rank, Seconds& when) {
    RankState& state = ranks_[at(rank)];
    // Counting from when the rank began to wait: a late rank finds what it awaits already there.
    when = state.since;
    if (state.step.await == Await::kAll) return met(state, rank, when);
    if (state.step.await == Await::kBefore) {
        const int world = fabric_.world();
        const RankState& before = ranks_[at((rank + world - 1) % world)];
        // A ring's rank waits for its neighbour only, so that a straggler holds up the others one
        // by one.
        if (before.signals < state.signals) return false;
        // A signal after the one awaited says that this one was seen long ago.
        const Seconds seen = before.signals == state.signals ? before.signal_seen : state.since;
        when = std::max(state.since, seen) + fabric_.line_read(rank) + fabric_.turn_taking(rank);
        return true;
    }
    if (state.step.await == Await::kCommand) {
        if (!commanded_) return false;
        when = std::max(state.since, command_seen_) + fabric_.line_read(rank) +
               fabric_.turn_taking(rank);
    }
    return true;
}

bool CollectiveRun::met(RankState& state, int rank, Seconds& when) {
    // Ranks know how far the others are from their clocks: a level that was seen once is not read
    // again.
    if (state.awaited >= state.signals) return true;  // nothing to wait for, or known already
    const Level& level = levels_[state.signals - 1];
    // By level and not by rank: all ranks' n-th signals are one barrier, and one counter says
    // whether it is over.
    if (level.signalled < fabric_.world()) return false;
    when = barrier_end(fabric_, rank, state.since, level.last_seen);
    state.awaited = state.signals;
    return true;
}

void CollectiveRun::begin_work(int rank) {
    RankState& state = ranks_[at(rank)];
    const Step& step = state.step;
    // Sync mode: all others have come, and rank 0 now lets them go.
    if (step.commands) {
        commanded_ = true;
        command_seen_ = queue_.now() + fabric_.word_store(rank);
        look_again(queue_.now(), Await::kCommand, -1);
    }
    if (step.touch_count == 0) return finish_step(rank, queue_.now());
    // The first byte travels before the others stream behind it; it is charged as a delay of the
    // step's end, so that resources are not held by what is only on its way.
    const auto units = static_cast<double>(step.touches[0].bytes);
    const int load = fabric_.load_of(rank, step);
    // The first rank that claims makes the pot; what it holds is the same for all.
    if (step.claimed && pot_ < 0) pot_ = fabric_.fluid().add_pot(units);
    // A pot is worked off once, whichever ranks do it.
    if (!step.claimed || rank == 0) count(rank, step);
    if (step.claimed) {
        fabric_.fluid().start_on_pot(rank, load, pot_);
    } else {
        fabric_.fluid().start(rank, load, units);
    }
}

// The work of the step is done, but for the way of its first byte.
void CollectiveRun::finish_step(int rank, Seconds now) {
    RankState& state = ranks_[at(rank)];
    const Seconds first = fabric_.first_byte(rank, state.step);
    // Once per step: `touch_count` is cleared so that the second call, when the first byte has
    // come, goes on.
    if (first > 0 && state.step.touch_count > 0) {
        state.step.touch_count = 0;
        queue_.schedule(now + first, kGoOn, rank);
        return;
    }
    if (state.step.signals) signal(rank, now);
    ++state.index;
    enter(rank, now);
}

void CollectiveRun::signal(int rank, Seconds now) {
    RankState& state = ranks_[at(rank)];
    state.signal_seen = now + fabric_.word_store(rank);
    // Levels come up in order, since a rank's n-th signal follows its (n - 1)-th.
    if (levels_.size() == state.signals) levels_.emplace_back();
    Level& level = levels_[state.signals++];
    ++level.signalled;
    level.last_seen = std::max(level.last_seen, state.signal_seen);
    // Only the last one of a level can end a wait for it.
    if (level.signalled == fabric_.world()) look_again(now, Await::kAll, -1);
    look_again(now, Await::kBefore, (rank + 1) % fabric_.world());
}

// Ranks whose wait may be over; `only` one of them, or all.
void CollectiveRun::look_again(Seconds now, Await await, int only) {
    const int first = only < 0 ? 0 : only;
    const int end = only < 0 ? fabric_.world() : only + 1;
    for (int rank = first; rank < end; ++rank) {
        RankState& state = ranks_[at(rank)];
        if (!state.waiting || state.step.await != await) continue;
        Seconds when = 0;
        if (!may_go(rank, when)) continue;
        state.waiting = false;
        // Never in the past, which the queue refuses.
        queue_.schedule(std::max(when, now), kWork, rank);
    }
}

void CollectiveRun::count(int, const Step& step) {
    for (int i = 0; i < step.touch_count; ++i) {
        const Touch& touch = step.touches[at(i)];
        const int world = fabric_.world();
        const int copies = touch.whose == Whose::kEach     ? world
                           : touch.whose == Whose::kOthers ? world - 1
                                                           : 1;
        const double bytes = static_cast<double>(touch.bytes) * copies;
        (touch.write ? result_.bytes_written : result_.bytes_read) += bytes;
    }
}

Bytes slot_bytes_for(int world) noexcept {
    // What a slot holds shrinks with the world, and beyond the largest group there is no layout to
    // ask.
    return fabricshm::GroupLayout::of(std::min(world, fabricshm::proto::kWorldMax)).slot_bytes;
}

RunResult simulate_allreduce(const Topology& topology, const AllreduceCall& call,
                             const fabricshm::Tuning& tuning,
                             const std::vector<Seconds>& arrivals) {
    const StepPlan plan(call, tuning, slot_bytes_for(call.world));
    // The same rule as in the library: what is larger than the caches together goes past them.
    const double touched = static_cast<double>(call.bytes) * 2 * call.world;
    const bool streaming = touched >= static_cast<double>(tuning.streaming_from);
    const auto run_pieces = [&](std::uint64_t pieces) {
        Fabric fabric(topology);
        FABRIC_CHECK(fabric.world() == call.world);
        fabric.prepare(plan, streaming);
        return CollectiveRun(fabric, plan, pieces).run(arrivals);
    };
    const double steps = static_cast<double>(plan.step_count()) * call.world;
    if (plan.algorithm() == Algorithm::kRing && !plan.in_pieces() && call.world > kLockstepFrom) {
        Fabric fabric(topology);
        fabric.prepare(plan, streaming);
        return run_lockstep(fabric, plan, arrivals);
    }
    if (!plan.in_pieces() || steps <= kMaxSteps || plan.pieces().count <= kPiecesRun) {
        return run_pieces(0);
    }
    // Two runs of the first pieces: their difference is the pace, free of what the beginning costs.
    // The rest is taken to go on at that pace.
    RunResult some = run_pieces(kPiecesRun);
    const RunResult half = run_pieces(kPiecesRun / 2);
    const Seconds each = (some.last_end - half.last_end) / (kPiecesRun - kPiecesRun / 2);
    const Seconds more = each * static_cast<double>(plan.pieces().count - kPiecesRun);
    for (Seconds& end : some.ended) end += more;
    some.last_end += more;
    some.aggregated = true;
    return some;
}

}  // namespace emu
