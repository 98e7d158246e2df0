// StepWords: the words through which the ranks of a parameter set meet in a step, and by which
// survivors and late ranks keep out of each other's way. parameter_block.hpp has their layout.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/optim/parameter_block.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricshm {

/// How far a rank has come in an attempt.
enum class StepWord { kReady, kMeasured, kDone };

/// The process that has the slot; pid 0: none.
ProcessIdentity process_of(const SlotRecord& record) noexcept;

/// One rank's side. Threads: one call at a time. Borrows the memory, and the group from adopt() on.
class StepWords {
  public:
    /// `records`: of the slots, from the start of `memory`.
    StepWords(std::byte* memory, Bytes records) : memory_(memory), records_(records) {}

    /// From here on this rank meets the ranks of `group`, whose slots these are, by rank. `era`:
    /// read while all of them were known to wait for this rank; one read later could be that of
    /// others that have sent this rank away.
    void adopt(Group& group, std::vector<int> slots, std::uint64_t era);

    Group& group() const noexcept { return *group_; }
    int slot() const noexcept { return slot_; }
    const std::vector<int>& members() const noexcept { return members_; }
    ParameterHeader& header() const noexcept {
        return *reinterpret_cast<ParameterHeader*>(memory_);
    }
    SlotRecord& record(int slot) const noexcept {
        return reinterpret_cast<SlotRecord*>(memory_ + records_)[slot];
    }
    SlotRecord& own() const noexcept { return record(slot_); }

    /// From here on the slot is this process's, in the era of adopt(), and nothing of it is inside;
    /// others see so behind the next barrier. Back: unless another has taken it since.
    void take_slot(const ProcessIdentity& self) noexcept;
    void give_up_slot() noexcept;

    /// Before this rank touches anything that others may: kBroken when the set has gone over to
    /// other ranks since adopt(). Others wait until leave().
    Result<void> enter() noexcept;
    void leave() noexcept;
    /// As enter(), whatever the era: the others of a recovery change it. If this rank does not
    /// belong to those, nothing of it goes on.
    Result<void> enter_recovery() noexcept;

    /// This rank has come so far; and, by a survivor, a rank that is dead.
    void raise(StepWord word, std::uint64_t number) noexcept {
        raise(*group_, slot_, word, number);
    }
    void raise(Group& group, int slot, StepWord word, std::uint64_t number) noexcept;

    /// Waits until all others have; kPeer and kTimeout name the rank, and break the group.
    Result<void> await(StepWord word, std::uint64_t number, TimePoint deadline);
    bool all_have(StepWord word, std::uint64_t number) const noexcept;

    /// That of the header now. Sequentially consistent: see enter().
    std::uint64_t era() const noexcept { return header().era.load(std::memory_order_seq_cst); }

    /// Sends away the ranks that are members and not `present`: they find the set gone, once
    /// `send_away()` has returned on one rank. await_absent() waits for those that are inside until
    /// they have left, or are dead. kTimeout names the slot in words.
    void send_away() noexcept;
    Result<void> await_absent(const std::vector<int>& present, TimePoint deadline) const;

  private:
    std::byte* memory_;
    Bytes records_;
    Group* group_ = nullptr;
    int slot_ = 0;
    std::vector<int> members_;
    std::uint64_t era_ = 0;
    std::uint64_t owner_ = 0;  // what take_slot() stored
};

}  // namespace fabricshm
