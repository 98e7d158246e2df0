// ParameterSet: parameters and optimiser state that exist once for all ranks of a group, and the
// step that reduces the ranks' gradients and applies the optimiser in one pass. docs/optimisers.md.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/optim/parameter_spec.hpp"
#include "libfabricshm/optim/shard_step.hpp"
#include "libfabricshm/optim/step_words.hpp"

namespace fabricshm {

struct StepReport {
    std::uint64_t step = 0;  // steps applied so far, this one included
    bool skipped = false;    // some element was not finite
    double norm = 0;         // of the merged, scaled gradient before clipping; NaN: not asked for
    Duration waited{};       // for other ranks
    Duration computed{};     // on this rank's shard
};

/// What became of the step that a rank died in.
struct RecoverReport {
    std::uint64_t step = 0;  // steps applied so far
    bool applied = false;    // the step that failed is one of them; else it changed nothing
};

/// One rank's view. Memory has to be coherent (kUnsupported). Threads: one call at a time. Borrows
/// memory and group; both outlive it.
class ParameterSet {
  public:
    /// Makes a set of zeros in `memory`, as long as the layout says and at a multiple of a page: by
    /// one process, before any other knows of it. Touches every byte but the gradients'.
    static void format(std::byte* memory, const ParameterSpec& spec);

    /// What attach() asks of memory that may hold a set of `spec`; waits for no rank.
    static Result<void> check(const Visibility& view, const std::byte* memory, Bytes bytes,
                              const ParameterSpec& spec);

    /// Takes the place of the group's rank; its slot has the number of its rank. By all ranks,
    /// after one of them has formatted the memory: a barrier. The set may have been used by others
    /// before, if these have ended or closed it between two steps (kBusy, kCorrupt otherwise).
    /// kMismatch: it was made of another spec.
    static Result<std::unique_ptr<ParameterSet>> attach(Group& group, Visibility view,
                                                        std::byte* memory, Bytes bytes,
                                                        ParameterSpec spec, TimePoint deadline);
    ~ParameterSet();
    ParameterSet(const ParameterSet&) = delete;
    ParameterSet& operator=(const ParameterSet&) = delete;

    const ParameterSpec& spec() const noexcept { return spec_; }
    const ParameterLayout& layout() const noexcept { return layout_; }
    std::uint64_t steps() const noexcept { return applied_; }
    int slot() const noexcept { return words_.slot(); }
    /// Whose elements this rank steps.
    ElementRange shard() const noexcept { return shards_[static_cast<std::size_t>(rank())]; }

    // Of parameter `index`; in this process. Parameters and state may be read between steps, and
    // written by one rank at a time before a barrier. A rank's gradient is its own between steps.
    float* values(std::size_t index) const noexcept;
    std::byte* copy(std::size_t index) const noexcept;  // nullptr: none
    std::byte* gradient(std::size_t index) const noexcept;
    float* state(std::size_t index, int which) const noexcept;

    /// How much of the set each rank steps from now on; in proportion to what it computes, say. The
    /// same on all ranks, between two steps. kInvalid: not one finite share per rank, above 0.
    /// kBroken: a step failed; its shards are finished as they were cut.
    Result<void> share(std::vector<double> shares);

    /// So many steps led to what is in the set. The same on all ranks, between two steps. kBroken:
    /// a step failed.
    Result<void> set_steps(std::uint64_t steps);

    /// Merges the gradients of all ranks in the order of their slots and moves the parameters; on
    /// return all ranks' shards are done. Gradients are left as they are.
    /// A failure that names a rank (kPeer, kTimeout) breaks the group and leaves the step to
    /// recover(): until then neither gradients nor parameters may be touched.
    /// kMismatch: another rank called a step with other values; nothing has changed, on any rank.
    Result<StepReport> step(const StepCall& call);

    /// After a shrink, by all ranks of the new group: finishes the step that failed if it had
    /// begun on any rank, else drops it; then the set belongs to `group`. A rank that is not in the
    /// new group has to be dead, or outside of step(): else all ranks get kTimeout, which names its
    /// slot, and may call again. May be repeated with a smaller group when another rank dies
    /// meanwhile, or any other failure ended `group`.
    Result<RecoverReport> recover(Group& group, TimePoint deadline);

  private:
    friend class ParameterSnapshots;  // needs the group, and what steps wait for
    friend class StaleSteps;          // steps the same shards, one rank at a time
    ParameterSet(Visibility view, std::byte* memory, ParameterSpec spec);

    /// All that decides what an attempt does to a shard.
    struct Attempt {
        std::uint64_t number = 0;
        StepCall call;
        std::uint64_t signature = 0;
    };
    /// What the ranks of a new group say of themselves, by rank.
    struct Survivors {
        std::vector<int> slots;
        std::uint64_t number = 0;  // the last attempt that any of them made
        std::uint64_t last = 0;  // that any member made, of those that are not there any more, too
        std::uint64_t era = 0;   // in which they go on
    };
    /// What became of an attempt.
    struct Decision {
        bool applied = false;
        std::uint64_t steps = 0;
        bool is_kept = false;  // in the header
    };

    int rank() const noexcept { return words_.group().rank(); }
    int world() const noexcept { return words_.group().world(); }
    float* floats(Bytes offset) const noexcept {
        return reinterpret_cast<float*>(memory_ + offset);
    }

    Result<void> take_over(TimePoint deadline);
    Result<void> check_call(const StepCall& call) const;
    Result<StepReport> attempt(const Attempt& what);
    Result<void> compare(const Attempt& what) const noexcept;
    Result<Survivors> agree(Group& group, TimePoint deadline) const;
    Result<void> keep_out_absent(Group& group, Survivors& survivors, TimePoint deadline);
    Result<RecoverReport> recover_in(Group& group, TimePoint deadline);
    Result<Decision> decide(Group& group, const Survivors& survivors);
    Result<bool> was_done(std::uint64_t number) const;
    Result<bool> finish(Group& group, const Survivors& survivors);
    void adopt(Group& group, std::vector<int> slots, std::uint64_t era);

    std::byte* memory_;
    ParameterSpec spec_;
    ParameterLayout layout_;
    ShardStep step_;
    StepWords words_;
    std::vector<ElementRange> shards_;  // by rank
    std::vector<double> shares_;        // by rank; empty: equal
    std::uint64_t attempts_ = 0;
    std::uint64_t applied_ = 0;
    bool is_half_restored_ = false;   // nothing but another snapshot makes it whole
    std::optional<Attempt> pending_;  // failed, and not recovered yet
};

/// kBusy when a living process has the set in this memory open; kExists when there is none.
Result<void> check_closed(const std::byte* memory, Bytes bytes);

}  // namespace fabricshm
