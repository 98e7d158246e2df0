// Steps: what each rank of an allreduce waits for, reads and writes, as a pure function. The
// engines (flat.cpp, direct.cpp, ring.cpp, host.cpp, staged.cpp) do it; the simulator asks here.
// The unit test counts what the engines touch, byte for byte, and compares: the two can't drift
// apart.

#pragma once

#include <array>
#include <cstdint>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/plan.hpp"
#include "libfabricshm/collective/tuning.hpp"

namespace fabricshm {

/// What kind of memory a rank touches.
enum class Where : std::uint8_t {
    kInput,   // the callers' buffers, in the arena or not
    kOutput,  // likewise
    kSlot,    // the slots of the group block
    kLine,    // the cache lines of tiny operations, in the group block
};

/// Whose it is, as the rank that touches it says it.
enum class Whose : std::uint8_t {
    kOwn,
    kBefore,  // of the rank before, in the ring
    kFirst,   // of rank 0
    kEach,    // of every rank, this one too
    kOthers,  // of every rank but this one
    kShares,  // of every rank but this one, each the share that it owns of `of` bytes
};

/// One read or write of memory.
struct Touch {
    Where where = Where::kInput;
    Whose whose = Whose::kOwn;
    Bytes bytes = 0;  // in each buffer that `whose` means; for kShares in all of them together
    bool write = false;
    // Ranks hand these bytes on within the operation: one writes them, another reads them. Where
    // caches are coherent they cross from core to core; bytes that one rank alone touches need not.
    bool handed = false;
    Bytes of = 0;  // kShares: the range that is shared out
};

/// What a rank waits for before the work of a step. "As far" counts signals of this operation.
enum class Await : std::uint8_t {
    kNothing,
    kAll,      // all ranks have signalled as often as this one
    kBefore,   // the rank before has
    kCommand,  // rank 0 has seen all and said so
};

/// One step: wait, touch, signal.
struct Step {
    Await await = Await::kNothing;
    bool commands = false;  // rank 0 lets the others go on, after the wait
    bool claimed = false;   // the touches are those of all ranks, which share them by claims
    bool signals = false;   // raises the clock after the work
    int touch_count = 0;
    std::array<Touch, 4> touches{};

    void touch(const Touch& touched) noexcept {
        if (touched.bytes != 0) touches[static_cast<std::size_t>(touch_count++)] = touched;
    }
};

/// An allreduce as all its ranks call it.
struct AllreduceCall {
    int world = 2;
    Bytes bytes = 0;  // of each rank's buffer
    Bytes element = 4;
    Algorithm algorithm = Algorithm::kAuto;
    Trigger trigger = Trigger::kAsync;
    bool in_arena = true;        // all buffers are
    bool shared_result = false;  // all ranks name the same output
};

/// The steps of an allreduce. A value; asking for a step costs a few divisions and no memory, since
/// a ring of thousands has millions of them. For world sizes from 2, also beyond what a group of
/// today admits: the algorithms have no limit of their own.
class StepPlan {
  public:
    /// Chooses route, algorithm and pieces as the executor does. `slot_bytes` is that of the group
    /// block (GroupLayout::slot_bytes).
    StepPlan(const AllreduceCall& call, const Tuning& tuning, Bytes slot_bytes) noexcept;

    Route route() const noexcept { return route_; }
    /// kFlat for tiny and slots, else what choose_arrived() said.
    Algorithm algorithm() const noexcept { return algorithm_; }
    const AllreduceCall& call() const noexcept { return call_; }
    /// How it goes through the slots, if it does.
    Pieces pieces() const noexcept { return pieces_; }
    bool in_pieces() const noexcept {
        const bool lines = route_ == Route::kTiny || route_ == Route::kTree;
        return on_slots_ || algorithm_ == Algorithm::kStaged ||
               (!lines && algorithm_ == Algorithm::kFlat);
    }
    bool claims() const noexcept { return claims_; }

    /// The same for all ranks.
    std::uint64_t step_count() const noexcept;
    Step step(int rank, std::uint64_t index) const noexcept;

  private:
    std::uint64_t arrival_steps() const noexcept;
    std::uint64_t inner_steps() const noexcept;
    std::uint64_t piece_steps() const noexcept;
    std::uint64_t work_steps() const noexcept;
    Bytes piece_bytes(std::uint64_t piece) const noexcept;
    Step arrival_step(int rank, std::uint64_t index) const noexcept;
    Step tiny_step(std::uint64_t index) const noexcept;
    Step tree_step(int rank, std::uint64_t index) const noexcept;
    Step slots_step(std::uint64_t index, Bytes bytes) const noexcept;
    Step staged_step(int rank, std::uint64_t index) const noexcept;
    void post_chunk(Step& step, int rank, std::uint64_t chunk) const noexcept;
    void reduce_chunk(Step& step, int rank, std::uint64_t chunk) const noexcept;
    void fetch_chunk(Step& step, int rank, std::uint64_t chunk) const noexcept;
    Step on_slots_step(int rank, std::uint64_t index, Bytes bytes) const noexcept;
    Step inner_step(int rank, std::uint64_t index, Bytes bytes) const noexcept;
    Step direct_step(int rank, std::uint64_t index, Bytes bytes) const noexcept;
    Step ring_step(int rank, std::uint64_t index, Bytes bytes) const noexcept;
    Step host_step(int rank, std::uint64_t index, Bytes bytes) const noexcept;

    AllreduceCall call_;
    Route route_ = Route::kArrive;
    Algorithm algorithm_ = Algorithm::kFlat;
    Pieces pieces_;
    bool on_slots_ = false;      // ring and host work on pieces that were copied into slots
    bool posted_early_ = false;  // the first piece is posted before the arrival
    bool claims_ = false;
};

}  // namespace fabricshm
