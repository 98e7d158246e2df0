// Collective run: one allreduce on a fabric, event by event.

#pragma once

#include <cstdint>
#include <vector>

#include "emu/sim/fabric.hpp"
#include "libfabricshm/collective/steps.hpp"

namespace emu {

/// How a run went.
struct RunResult {
    std::vector<Seconds> ended;  // by rank
    Seconds first_arrival = 0;
    Seconds last_arrival = 0;
    Seconds last_end = 0;
    std::uint64_t events = 0;
    double bytes_read = 0;     // by all ranks, as the steps say
    double bytes_written = 0;  // likewise
    bool aggregated = false;   // by lockstep or from a few pieces, see simulate_allreduce()

    Seconds from_first() const noexcept { return last_end - first_arrival; }
    /// What the operation adds once all are there.
    Seconds from_last() const noexcept { return last_end - last_arrival; }
};

/// Runs every step of every rank as events. For worlds and plans of up to some million steps.
class CollectiveRun {
  public:
    /// `pieces` cuts a plan in pieces short, 0: all of them. Fabric and plan are borrowed.
    CollectiveRun(Fabric& fabric, const fabricshm::StepPlan& plan, std::uint64_t pieces = 0);

    /// `arrivals`: when each rank calls; empty: all at once at 0. Once per object.
    RunResult run(const std::vector<Seconds>& arrivals);

  private:
    enum EventKind { kArrive, kWork, kGoOn };
    struct RankState {
        std::uint64_t index = 0;    // of the step it is in
        std::uint64_t signals = 0;  // of this operation so far
        std::uint64_t awaited = 0;  // all ranks are known to have signalled so often
        Seconds signal_seen = 0;    // when the last signal is visible to others
        bool waiting = false;       // in `index`, since `since`
        Seconds since = 0;
        fabricshm::Step step;
    };
    struct Level {  // all ranks' n-th signals
        int signalled = 0;
        Seconds last_seen = 0;
    };

    static std::size_t at(int rank) noexcept { return static_cast<std::size_t>(rank); }
    void enter(int rank, Seconds now);
    bool may_go(int rank, Seconds& when);
    bool met(RankState& state, int rank, Seconds& when);
    void begin_work(int rank);
    void finish_step(int rank, Seconds now);
    void signal(int rank, Seconds now);
    void look_again(Seconds now, fabricshm::Await await, int only);
    void count(int rank, const fabricshm::Step& step);

    Fabric& fabric_;
    const fabricshm::StepPlan& plan_;
    std::uint64_t steps_;
    EventQueue queue_;
    std::vector<RankState> ranks_;
    std::vector<Level> levels_;
    bool commanded_ = false;
    Seconds command_seen_ = 0;
    int pot_ = -1;
    RunResult result_;
};

/// An allreduce on a topology: plans it with the library's own code and runs it. A ring of many
/// ranks is run round by round (lockstep.hpp), and of an operation in very many pieces the first
/// ones, the rest following at the same pace: where all ranks do the same, both give what all
/// events would.
RunResult simulate_allreduce(const Topology& topology, const fabricshm::AllreduceCall& call,
                             const fabricshm::Tuning& tuning,
                             const std::vector<Seconds>& arrivals = {});

/// Bytes of a slot in a group of `world`: of today's largest group, where there is none so large.
fabricshm::Bytes slot_bytes_for(int world) noexcept;

/// When a rank that starts to poll at `since` knows that all have signalled, the last of them
/// visible at `last_seen`. It reads world - 1 words, some at a time.
Seconds barrier_end(const Fabric& fabric, int rank, Seconds since, Seconds last_seen);

}  // namespace emu
