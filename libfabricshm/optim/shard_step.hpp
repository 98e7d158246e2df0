// ShardStep: one step of a shard of a parameter set: reduce the members' gradients, move the
// parameters. What it needs of other ranks is there before it begins; it waits for nothing.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/optimise.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/optim/parameter_block.hpp"
#include "libfabricshm/optim/parameter_spec.hpp"
#include "libfabricshm/optim/snapshot_stage.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace fabricshm {

/// What a step is called with; the same on all ranks, but for the weight (kMismatch otherwise).
struct StepCall {
    std::vector<kernels::Hyper> hyper;  // by the parameters' `options`
    // b_i of g = sum b_i * g_i; NaN: 1 / world. Weights need not add up to 1.
    double weight = std::numeric_limits<double>::quiet_NaN();
    double scale = 1;             // of the sum, 1 / loss scale say
    double clip_norm = 0;         // above 0: g is scaled down to this norm, over the whole set
    bool skip_nonfinite = false;  // a gradient with an infinity or a NaN changes nothing
    TimePoint deadline{};

    /// Whether the merged gradient is measured before anything moves: takes a second pass over it.
    bool measures() const noexcept;
};

/// What all ranks conclude from what they have measured.
struct StepVerdict {
    bool skipped = false;
    double norm = 0;  // NaN: not measured
    float scale = 1;  // what the sum is multiplied by
};

/// Of one rank, or of a survivor in place of one that died. Threads: one at a time. Borrows spec,
/// layout and memory. Allocates nothing after the first step.
class ShardStep {
  public:
    ShardStep(const ParameterSpec& spec, const ParameterLayout& layout, std::byte* memory,
              Visibility view)
        : spec_(spec), layout_(layout), memory_(memory), view_(view) {}

    /// The slots whose gradients are summed, in this order; one for each rank.
    void set_members(std::vector<int> slots);
    const std::vector<int>& members() const noexcept { return members_; }
    SlotRecord& record(int slot) const noexcept {
        return reinterpret_cast<SlotRecord*>(memory_ + layout_.slots)[slot];
    }

    /// From here on what a step is about to change is saved first; nullptr: nothing is. All that is
    /// not saved yet is, when the shards are cut in another way: settle().
    void set_stage(std::shared_ptr<SnapshotStage> stage) noexcept { stage_ = std::move(stage); }
    void settle() noexcept {
        if (stage_) stage_->save_all();
    }

    /// The weights that the members have shown for attempt `number`, and what step `step`
    /// multiplies by. Before all that follows.
    void begin(const StepCall& call, std::uint64_t number, std::uint64_t step);

    /// The square sum of the merged gradient of `shard`, and whether it is finite.
    void measure(const StepCall& call, const ElementRange& shard, SlotRecord& into);

    /// From what all members have measured, so that all judge alike.
    StepVerdict judge(const StepCall& call) const noexcept;

    /// Steps `shard`, from where the record of `slot` says that it was left. kCorrupt: the record
    /// says something that no step leaves behind.
    Result<void> run(std::uint64_t number, const StepVerdict& verdict, const ElementRange& shard,
                     int slot);

  private:
    float* floats(Bytes offset) const noexcept {
        return reinterpret_cast<float*>(memory_ + offset);
    }
    double scale_of(const StepCall& call) const noexcept;
    void find_sources(std::uint64_t at) noexcept;
    void charge(const ElementRange& shard, bool steps) const noexcept;
    kernels::OptimiseJob job_of(ElementRange range, kernels::UndoLog& log, int slot) const noexcept;
    ElementRange chunk_at(std::uint64_t at, std::size_t segment, std::uint64_t end) const noexcept;

    const ParameterSpec& spec_;
    const ParameterLayout& layout_;
    std::byte* memory_;
    Visibility view_;
    std::vector<int> members_;
    std::vector<float> weights_;                 // by member
    bool weighted_ = false;                      // some member has shown a weight
    std::vector<kernels::StepFactors> factors_;  // by options
    std::vector<const void*> sources_;           // by member
    std::shared_ptr<SnapshotStage> stage_;       // of a snapshot under way
};

}  // namespace fabricshm
