#include "emu/sim/lockstep.hpp"

#include <algorithm>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/collective/plan.hpp"

namespace emu {

using fabricshm::Await;
using fabricshm::Step;
using fabricshm::StepPlan;

namespace {

std::size_t at(int rank) noexcept {
    return static_cast<std::size_t>(rank);
}

// The step at `index`, with a chunk that is not empty: small vectors have some that are.
Step full_step(const StepPlan& plan, int rank, std::uint64_t index) {
    const int world = plan.call().world;
    Step step = plan.step(rank, index);
    for (int more = 1; step.touch_count == 0 && more < world; ++more) {
        step = plan.step((rank + more) % world, index);
    }
    return step;
}

// Per byte of a chunk, of each rank, while all are in a step like the one at `index`.
std::vector<Seconds> per_byte(Fabric& fabric, const StepPlan& plan, std::uint64_t index) {
    std::vector<Seconds> costs(at(fabric.world()), 0);
    std::vector<int> loads;
    for (int rank = 0; rank < fabric.world(); ++rank) {
        const Step step = full_step(plan, rank, index);
        loads.push_back(step.touch_count == 0 ? -1 : fabric.load_of(rank, step));
    }
    Fluid fluid = fabric.fluid();  // a copy: nothing of this moves the fabric's own clock
    // So much work that no rank is done: what is asked for is the rate of all at once.
    for (int rank = 0; rank < fabric.world(); ++rank) {
        if (loads[at(rank)] >= 0) fluid.start(rank, loads[at(rank)], 1e30);
    }
    const std::vector<double> rates = fluid.rates();
    std::size_t next = 0;
    for (int rank = 0; rank < fabric.world(); ++rank) {
        // In the order of starting, which left out those without work.
        if (loads[at(rank)] >= 0) costs[at(rank)] = 1 / rates[next++];
    }
    return costs;
}

// All ranks signal and then wait for all: when each leaves the barrier.
std::vector<Seconds> meet(const Fabric& fabric, const std::vector<Seconds>& signalled) {
    Seconds last = 0;
    for (int rank = 0; rank < fabric.world(); ++rank) {
        last = std::max(last, signalled[at(rank)] + fabric.word_store(rank));
    }
    std::vector<Seconds> ends;
    for (int rank = 0; rank < fabric.world(); ++rank) {
        ends.push_back(barrier_end(fabric, rank, signalled[at(rank)], last));
    }
    return ends;
}

// What does not change from round to round.
struct Rounds {
    std::vector<Seconds> costs;  // per byte
    std::vector<Seconds> fixed;  // word of the neighbour and turn
    std::vector<Seconds> first;  // byte of a chunk, unless it is empty
    std::vector<Seconds> store;  // until a signal is visible
    std::vector<double> chunks;  // bytes
};

// One pass: rank r goes on when it and the rank before it are done with the last round.
void run_round(const Rounds& rounds, std::vector<Seconds>& now, std::vector<Seconds>& next,
               int first_chunk) {
    const int world = static_cast<int>(now.size());
    int chunk = first_chunk;  // of rank 0; the next rank has the next one
    for (int rank = 0; rank < world; ++rank) {
        const std::size_t before = at(rank == 0 ? world - 1 : rank - 1);
        const Seconds ready = std::max(now[at(rank)], now[before] + rounds.store[before]);
        // Chunks differ by a line at most, and in a vector smaller than the world some are empty.
        const double bytes = rounds.chunks[at(chunk)];
        const Seconds work =
            bytes * rounds.costs[at(rank)] + (bytes > 0 ? rounds.first[at(rank)] : 0);
        next[at(rank)] = ready + rounds.fixed[at(rank)] + work;
        if (++chunk == world) chunk = 0;
    }
    now.swap(next);
}

std::vector<Seconds> arrive(const Fabric& fabric, const StepPlan& plan,
                            std::vector<Seconds> arrivals) {
    std::vector<Seconds> met = meet(fabric, arrivals);
    // Async: a barrier is all there is to arriving.
    if (plan.call().trigger != fabricshm::Trigger::kSync) return met;
    // Sync: rank 0 gives the word once all have come.
    const Seconds command = met[0] + fabric.word_store(0);
    for (int rank = 1; rank < fabric.world(); ++rank) {
        met[at(rank)] = std::max(arrivals[at(rank)], command) + fabric.line_read(rank);
    }
    return met;
}

}  // namespace

RunResult run_lockstep(Fabric& fabric, const StepPlan& plan, const std::vector<Seconds>& arrivals) {
    const int world = fabric.world();
    FABRIC_CHECK(plan.algorithm() == fabricshm::Algorithm::kRing);
    std::vector<Seconds> now = arrivals.empty() ? std::vector<Seconds>(at(world), 0) : arrivals;
    RunResult result;
    result.aggregated = true;
    result.first_arrival = *std::min_element(now.begin(), now.end());
    result.last_arrival = *std::max_element(now.begin(), now.end());
    now = arrive(fabric, plan, now);
    Rounds rounds;
    for (int chunk = 0; chunk < world; ++chunk) {
        rounds.chunks.push_back(
            static_cast<double>(fabricshm::share_of(plan.call().bytes, chunk, world).size()));
        rounds.store.push_back(fabric.word_store(chunk));
    }
    // A plan is the arrival, 2 (N - 1) rounds and the two steps of the last barrier.
    const std::uint64_t arrival = plan.step_count() - 2 * at(world - 1) - 2;
    std::vector<Seconds> next(now.size());
    // Reduce-scatter, then all-gather: rounds of a half are alike, and differ from those of the
    // other by what they read.
    for (int half = 0; half < 2; ++half) {
        const std::uint64_t first = arrival + static_cast<std::uint64_t>(half) * at(world - 1);
        rounds.costs = per_byte(fabric, plan, first + 1);
        rounds.fixed.clear();
        rounds.first.clear();
        for (int rank = 0; rank < world; ++rank) {
            rounds.fixed.push_back(fabric.line_read(rank) + fabric.turn_taking(rank));
            rounds.first.push_back(fabric.first_byte(rank, full_step(plan, rank, first + 1)));
        }
        // In round i rank 0 works on the chunk i + 1 places behind its own, and in the second half
        // on the one i places behind it.
        for (int round = 0; round < world - 1; ++round) {
            run_round(rounds, now, next, (2 * world - round - 1 + half) % world);
        }
        const double bytes = static_cast<double>(plan.call().bytes) * (world - 1);
        // The first half reads the neighbour's chunk and its own, the second only copies.
        result.bytes_read += bytes * (half == 0 ? 2 : 1);
        result.bytes_written += bytes;
    }
    result.ended = meet(fabric, now);
    result.last_end = *std::max_element(result.ended.begin(), result.ended.end());
    // Rounds are what this run costs, and not steps.
    result.events = 2 * at(world - 1);
    return result;
}

}  // namespace emu
