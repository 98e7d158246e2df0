// StaleSteps: ranks that step a parameter set each for itself, in the order in which they come, and
// at most `staleness` versions apart: the parameter server. docs/parameter_server.md,
// tests/models/stale.pml.

#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/optim/parameter_set.hpp"
#include "libfabricshm/optim/shard_step.hpp"

namespace fabricshm {

/// What a push took.
struct PushReport {
    std::uint64_t step = 0;  // steps of this rank's own range, this one included
    Duration waited{};       // for ranges that others stepped or copied
    Duration computed{};
};

/// One rank's side. The set's shards are the *ranges*; each is stepped or copied by one rank at a
/// time, which holds its word. Between the first push() and finish() no rank calls step() or
/// anything else of the set that is by all ranks. Threads: one call at a time. Borrows the set.
class StaleSteps {
  public:
    explicit StaleSteps(ParameterSet& set);

    /// Steps all ranges by this rank's own gradient, times `call.weight` if there is one; by this
    /// rank alone. kInvalid: a push does not clip or check. kPeer: a rank died while it held a
    /// range, which stays as it is: half stepped. kTimeout names a rank that holds one.
    Result<PushReport> push(const StepCall& call);

    /// Copies the parameters, each range as some pushes have left it, to values[i] of parameter i.
    /// Failures as of push().
    Result<void> pull(const std::vector<float*>& values, TimePoint deadline);

    /// Ends this rank's version, after its push, and begins the next one, once no rank is more than
    /// `staleness` versions behind that; returns it. A rank that was behind begins where the others
    /// are. kPeer, kTimeout name the rank that is behind, and break the group.
    Result<std::uint64_t> advance(std::uint64_t staleness, TimePoint deadline);

    /// By all ranks: ends it. No rank waits for this one any more; once all have come the set has
    /// as many steps as there were pushes, and may be stepped together again.
    Result<void> finish(TimePoint deadline);

  private:
    SlotRecord& record_of(int rank) const noexcept;
    Result<void> visit_ranges(TimePoint deadline, Duration& waited,
                              const std::function<Result<void>(int rank)>& visit);
    Result<void> hold(SlotRecord& range, TimePoint deadline) const;
    Result<void> check_holder(std::uint32_t holder, TimePoint deadline) const;
    Result<void> step_range(const StepCall& call, int rank);
    void copy_range(const std::vector<float*>& values, int rank) const noexcept;

    ParameterSet& set_;
    ShardStep step_;  // of this rank's gradient alone
    std::uint64_t version_ = 0;
};

}  // namespace fabricshm
