#include "libfabricshm/optim/step_words.hpp"

#include <algorithm>
#include <thread>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/collective/barrier.hpp"

namespace fabricshm {

namespace {

Word word_of(SlotRecord& record, StepWord word) noexcept {
    constexpr auto kTouch = TouchPoint::kStep;
    constexpr auto kRead = TouchPoint::kStepRead;
    switch (word) {
        case StepWord::kReady:
            return {record.ready, record.ready_sleepers, kTouch, kRead};
        case StepWord::kMeasured:
            return {record.measured, record.measured_sleepers, kTouch, kRead};
        default:
            return {record.done, record.done_sleepers, kTouch, kRead};
    }
}

Error turn_back() {
    return explain({Errc::kBroken, 0, "step"}, "the other ranks went on without this one");
}

}  // namespace

ProcessIdentity process_of(const SlotRecord& record) noexcept {
    // Acquire: with it, the rest of the identity.
    const std::uint64_t owner = record.owner.load(std::memory_order_acquire);
    return {static_cast<std::int32_t>(owner & 0xffffffff), record.start_time, record.pid_namespace};
}

void StepWords::adopt(Group& group, std::vector<int> slots, std::uint64_t era) {
    group_ = &group;
    members_ = std::move(slots);
    slot_ = members_[static_cast<std::size_t>(group.rank())];
    era_ = era;
}

void StepWords::take_slot(const ProcessIdentity& self) noexcept {
    owner_ = era_ << 32 | static_cast<std::uint32_t>(self.pid);
    own().start_time = self.start_time;
    own().pid_namespace = self.pid_namespace;
    // Release: with it, the two before.
    own().owner.store(owner_, std::memory_order_release);
    // The process that had the slot may have died in a step. Relaxed: a barrier comes after it.
    own().inside.store(0, std::memory_order_relaxed);
    // It may have died in a push. Relaxed, likewise.
    own().version.store(0, std::memory_order_relaxed);
    own().holder.store(0, std::memory_order_relaxed);
    own().served.store(0, std::memory_order_relaxed);
}

void StepWords::give_up_slot() noexcept {
    if (owner_ == 0) return;
    // Only this rank's own: the slot may be another's by now. Release: nothing of this rank comes
    // after it, so that the memory may be given back.
    own().owner.compare_exchange_strong(owner_, 0, std::memory_order_release,
                                        std::memory_order_relaxed);
}

Result<void> StepWords::enter_recovery() noexcept {
    // Relaxed: an owner that is not this rank any more never becomes it again.
    if (own().owner.load(std::memory_order_relaxed) != owner_) return turn_back();
    own().inside.store(1, std::memory_order_seq_cst);  // see enter()
    return {};
}

Result<void> StepWords::enter() noexcept {
    // Before the store: the slot may be that of another process by now.
    if (era() != era_) return turn_back();
    // Store, then load, both sequentially consistent, as send_away() and await_absent() do with the
    // two words in the other order: either this rank sees the new era and turns back, or the others
    // see that it is inside, and wait for it.
    own().inside.store(1, std::memory_order_seq_cst);
    if (era() == era_) return {};
    leave();
    return turn_back();
}

void StepWords::leave() noexcept {
    // Release: all that this rank did to the set comes before.
    own().inside.store(0, std::memory_order_release);
}

void StepWords::raise(Group& group, int slot, StepWord word, std::uint64_t number) noexcept {
    group.raise(word_of(record(slot), word), number);
}

Result<void> StepWords::await(StepWord word, std::uint64_t number, TimePoint deadline) {
    const int world = group_->world();
    // Behind this rank first, so that not all read the same line at once.
    for (int step = 1; step < world; ++step) {
        const int peer = (group_->rank() + step) % world;
        SlotRecord& of = record(members_[static_cast<std::size_t>(peer)]);
        FABRIC_TRY_VOID(group_->await(word_of(of, word), number, peer, deadline));
    }
    return {};
}

bool StepWords::all_have(StepWord word, std::uint64_t number) const noexcept {
    return std::ranges::all_of(members_, [&](int slot) {
        // Acquire: with the word, what its rank stored before is visible.
        return word_of(record(slot), word).value.load(std::memory_order_acquire) >= number;
    });
}

void StepWords::send_away() noexcept {
    header().era.fetch_add(1, std::memory_order_seq_cst);  // see enter()
}

// One that is stopped in the middle of its shard would go on some day, and overwrite what others
// have finished for it.
Result<void> StepWords::await_absent(const std::vector<int>& present, TimePoint deadline) const {
    for (const int slot : members_) {
        if (std::ranges::find(present, slot) != present.end()) continue;
        const SlotRecord& of = record(slot);
        const ProcessIdentity process = process_of(of);
        // Sequentially consistent, after the era was raised: see enter().
        while (of.inside.load(std::memory_order_seq_cst) != 0 &&
               liveness_of(process) != Liveness::kDead) {
            if (Clock::now() >= deadline) {
                return explain({Errc::kTimeout, slot, "recover step"},
                               "the process of slot %d (pid %d) is alive and in the middle of the "
                               "step; end it, and call again",
                               slot, process.pid);
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
    return {};
}

}  // namespace fabricshm
