// Barrier: how ranks wait for each other. One word per rank that only rises (its clock), written by
// its owner, read by all. Every wait is bounded: it ends with the value, a dead peer, a broken
// group or the deadline. The life of a wait: spin, then yield, then sleep on the word; where hosts
// do not share caches, nap and poll again. docs/concurrency.md.

#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/domains.hpp"
#include "libfabricshm/collective/long_wait.hpp"
#include "libfabricshm/collective/meter.hpp"
#include "libfabricshm/collective/tuning.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace fabricshm {

/// How long a sleeper trusts that a dead peer would have been announced before it checks for
/// itself.
inline constexpr Duration kSleepSlice = std::chrono::milliseconds(20);

/// How long a wait stays awake at most. Pauses and yields multiply, and come from a file or from
/// what the job shares: together they could be hours before the first check for a dead peer.
inline constexpr Duration kMaxAwake = std::chrono::milliseconds(100);

/// A word that rises, how many sleep on it, and by which touches it crosses between ranks.
/// Passed by reference: a copy would read two single bytes as a part of eight, for which the
/// processor waits until every earlier store has left it, and one of these is to a line that a peer
/// has.
struct Word {
    std::atomic<std::uint64_t>& value;
    std::atomic<std::uint32_t>& sleepers;
    TouchPoint raised;
    TouchPoint seen;
};

/// Everything of one group that waiting needs. Used by one thread at a time, but for the message
/// threads, which use await() and raise() on other words only.
class Barrier {
  public:
    Barrier(std::byte* block, int rank, int world, const Visibility& view = {});

    /// Where waits are timed from now on; nullptr: nowhere.
    void set_meter(Meter* meter) noexcept { meter_ = meter; }

    /// What the operation that begins is, for LongWait. Messages may wait at the same time: atomic.
    void begin_operation(const char* kind, Bytes bytes) noexcept {
        // Relaxed: only a line of the log is made of it.
        kind_.store(kind, std::memory_order_relaxed);
        bytes_.store(bytes, std::memory_order_relaxed);
    }
    /// When waits are long and where they are shown. Changed before the first operation.
    LongWaits& long_waits() noexcept { return long_waits_; }
    const LongWaits& long_waits() const noexcept { return long_waits_; }

    /// Publishes this process's identity, and where it may run; the first step of attaching.
    Result<void> announce(const RankPlace& place);

    /// After all have announced: how many processors the ranks have, each counted for one rank at
    /// most. Fewer than ranks: some have to take turns.
    int processors() const noexcept;

    /// After all have announced: whether sleepers can do the fencing for the wakers (all processes
    /// take part in expedited membarriers), and how long to spin.
    void settle(const Tuning& tuning) noexcept;

    /// From now on meet() goes along the tree. Coherent memory only; the tree outlives this.
    void follow(const Tree& tree) noexcept { tree_ = &tree; }
    bool has_tree() const noexcept { return tree_ != nullptr; }

    /// Shows what this rank calls in operations of this parity. Along the tree a rank that called
    /// something else is found in the first barrier.
    void show_signature(std::size_t parity, std::uint64_t signature) noexcept {
        shown_parity_ = parity;
        shown_signature_ = signature;
        // Relaxed: the release of the next step makes it visible before the step.
        own().signature[parity].store(signature, std::memory_order_relaxed);
    }

    /// A barrier of all ranks: raises this rank's clock to `value` and waits until all have come as
    /// far. Along the tree a clock says that all ranks below have come, too.
    Result<void> meet(std::uint64_t value, TimePoint deadline) {
        if (__builtin_expect(tree_ != nullptr, false)) return pass_along_tree(value, deadline);
        signal(value);
        return wait_all(value, deadline);
    }

    /// meet() along the tree, in which every rank says whether something is as it was; true when
    /// it is for all.
    Result<bool> pass_and_vote(std::uint64_t value, bool unchanged, TimePoint deadline) {
        vote_ = unchanged;
        FABRIC_TRY_VOID(pass_along_tree(value, deadline));
        return vote_;
    }

    /// The parts of a barrier along the tree: waits for the ranks right below; for the rank above,
    /// which has heard of all; lets the ranks below go on.
    Result<void> gather(std::uint64_t value, TimePoint deadline);
    Result<void> await_release(std::uint64_t value, TimePoint deadline);
    void release(std::uint64_t value) noexcept;

    /// Notes that all ranks have come to `value`.
    void saw_all(std::uint64_t value) noexcept {
        FABRIC_DCHECK(value >= all_seen_ && value <= signalled_);
        all_seen_ = value;
    }

    /// `error` of a wait along the tree: a timeout names the rank that did not come, not the one
    /// that was waited for on its behalf.
    Error name_late(const Error& error, std::uint64_t value) noexcept;

    /// Raises this rank's clock to `value`: all that it stored before is visible to a rank that
    /// sees it.
    void signal(std::uint64_t value) noexcept {
        // A clock that went back would let a peer go on that waits for less; wait() relies on it.
        FABRIC_DCHECK(value > signalled_);
        signalled_ = value;
        show_processor();
        raise(clock_of(rank_), value);
    }

    /// Waits until the clock of `peer` is at least `value`.
    Result<void> wait(int peer, std::uint64_t value, TimePoint deadline) {
        FABRIC_DCHECK(peer >= 0 && peer < world_ && peer != rank_);
        std::uint64_t& seen = seen_[static_cast<std::size_t>(peer)];
        if (seen >= value || all_seen_ >= value) return {};
        view_.acquire(TouchPoint::kClockRead, &words(peer), kCacheLine, peer);
        // Acquire pairs with the release in raise(): what the peer stored before is visible now.
        seen = words(peer).clock.load(std::memory_order_acquire);
        if (seen >= value) return {};
        return wait_slowly(peer, value, deadline);
    }

    /// Waits for the clocks of all ranks, this one aside. Starts behind this rank, so that not all
    /// ranks read the same line first.
    Result<void> wait_all(std::uint64_t value, TimePoint deadline) {
        // All wait for what all signal: a rank that waited for more than it gave would be waited
        // for by the others in turn, for ever.
        FABRIC_DCHECK(value <= signalled_);
        if (all_seen_ >= value) return {};
        for (int step = 1; step < world_; ++step) {
            const int peer = rank_ + step < world_ ? rank_ + step : rank_ + step - world_;
            FABRIC_TRY_VOID(wait(peer, value, deadline));
        }
        return {};
    }

    /// Notes that `peer` has come to `value`, learnt elsewhere (from the flag of a tiny line).
    void saw(int peer, std::uint64_t value) noexcept {
        std::uint64_t& seen = seen_[static_cast<std::size_t>(peer)];
        if (seen < value) seen = value;
    }

    /// Waits until `word` is at least `value`. `peer` (or -1) has to raise it.
    Result<void> await(const Word& word, std::uint64_t value, int peer, TimePoint deadline);

    /// Stores `value` with release and wakes those that sleep on the word.
    void raise(const Word& word, std::uint64_t value) noexcept {
        view_.step(PoolStep::kSignal);
        if (!view_.coherent()) {
            // Release: within this host's caches, everything stored before comes first. All of it
            // was published before, and the line of the word is published last.
            word.value.store(value, std::memory_order_release);
            view_.publish(word.raised, &word.value, sizeof value);
            return;
        }
        // A sleeper first adds itself to `sleepers` and then rechecks `value`; this process stores
        // `value` and then checks `sleepers`. One of the two must see the other, but the processor
        // may move our load before our store. So either both are sequentially consistent (fenced_),
        // or every sleeper sends a membarrier() to all our processors between its two steps, and
        // then release is enough and only the compiler must be kept from moving the load.
        if (fenced_) {
            word.value.store(value, std::memory_order_seq_cst);
        } else {
            word.value.store(value, std::memory_order_release);
            std::atomic_signal_fence(std::memory_order_seq_cst);
        }
        view_.publish(word.raised, &word.value, sizeof value);
        wake(word);
    }

    /// Wakes those that sleep on the word, if any.
    static void wake(const Word& word) noexcept {
        // Sequentially consistent: our half of what raise() says, where that stored in the same
        // order.
        if (__builtin_expect(word.sleepers.load(std::memory_order_seq_cst) != 0, false)) {
            wake_sleepers(word);
        }
    }

    /// True: a store that a sleeper must not miss has to be sequentially consistent; see raise().
    bool fenced() const noexcept { return fenced_; }
    std::uint64_t yields() const noexcept { return yields_; }

    /// For waits that poll more than one word. Counts this thread among the sleepers of `word`:
    /// what others stored before they read that count is visible afterwards, so poll once more.
    void enlist(const Word& word) noexcept;
    /// After that poll: sleeps while the word is `seen`, until `until` at most, and takes the
    /// thread off the count.
    void doze(const Word& word, std::uint64_t seen, TimePoint until) noexcept;

    /// What a waiter does between two polls where no rank can wake it: pauses, later yields, then
    /// naps. `turn` counts its polls. True when it is time to check peers and deadline, too.
    bool idle(std::uint64_t turn) const noexcept;

    /// Why the group can't go on, if so. `peer` (or -1) is checked for life, too.
    /// `may_leave`: it may have left, alive, and its process ended since, as waits allow that need
    /// no more of it.
    Result<void> check(int peer, bool may_leave = false) noexcept;

    /// check(-1) for the way of an operation that goes well: a load. What this rank read before
    /// was read before the group broke, if this finds it whole.
    Result<void> check_unbroken() noexcept {
        // The loads before it stay before the check of the word: x86 keeps the order of loads, and
        // the signal fence that of the compiler.
        std::atomic_signal_fence(std::memory_order_seq_cst);
        const bool coherent = view_.coherent();
        if (coherent && header_->broken.load(std::memory_order_relaxed) == 0) return {};
        return check(-1);
    }

    /// This rank touches nothing of its peers any more that they showed at the arrival `at`.
    void leave(std::uint64_t at) noexcept { own().left.store(at, std::memory_order_release); }

    /// This rank leaves the group, alive, after its last operation: waits for more of it end at
    /// once with kPeer and its number.
    void depart() noexcept;

    /// In a broken group: waits until no peer stores into what this rank showed at the arrival
    /// `at`. kTimeout names a peer that may still do so. Coherent memory only.
    Result<void> await_leaving(std::uint64_t at, TimePoint deadline) noexcept;

    /// False: the process of `peer` has ended, or it has left; it touches nothing any more.
    bool lives(int peer) noexcept { return check_alive(peer).ok(); }

    /// Whether the group can't go on. Cheap on coherent memory: one load of a line that is not
    /// written.
    bool broken() noexcept {
        // Acquire, as in reason_seen().
        if (view_.coherent()) return header_->broken.load(std::memory_order_acquire) != 0;
        return reason_seen() != 0;
    }

    /// Breaks the group for all ranks; the first reason stays.
    void fail(Errc code, int rank) noexcept;

    const Visibility& view() const noexcept { return view_; }
    RankWords& words(int peer) const noexcept { return ranks_[peer]; }
    Word clock_of(int peer) const noexcept {
        return {words(peer).clock, words(peer).sleepers, TouchPoint::kClock,
                TouchPoint::kClockRead};
    }
    /// Raised by `peer` when all ranks have come to an operation; the ranks below it wait for it.
    Word release_of(int peer) const noexcept {
        TreeRelease& release = tree_words_[peer].release;
        return {release.flag, release.sleepers, TouchPoint::kTree, TouchPoint::kTreeRead};
    }
    TreeWords& tree_words(int peer) const noexcept { return tree_words_[peer]; }
    GroupHeader& header() const noexcept { return *header_; }
    int rank() const noexcept { return rank_; }
    int world() const noexcept { return world_; }

    /// Pauses that are worth while for `peer` (or -1): none for one that shares our processor.
    std::uint64_t spins_for(int peer) const noexcept;

  private:
    RankWords& own() const noexcept { return ranks_[rank_]; }
    // Two nanoseconds: the kernel keeps the number in the thread's memory (rseq).
    void show_processor() noexcept {
        const auto now = static_cast<std::uint32_t>(::sched_getcpu() + 1);
        if (now == shown_processor_) return;
        shown_processor_ = now;
        // Relaxed, here and where it is read: a hint. An old one costs a spin in vain, or a yield.
        own().processor.store(now, std::memory_order_relaxed);
    }
    int processors_of(std::uint64_t kernel, int from) const noexcept;
    static void wake_sleepers(const Word& word) noexcept;
    Result<void> check_reason() noexcept;
    Result<void> check_alive(int peer) noexcept;
    bool is_gone(int peer) noexcept;
    bool has_left(int peer, std::uint64_t at) noexcept;
    Result<void> pass_along_tree(std::uint64_t value, TimePoint deadline);
    Result<void> check_release(std::uint64_t value, int parent) noexcept;
    Result<void> wait_slowly(int peer, std::uint64_t value, TimePoint deadline);
    Result<void> check_others(const Word& word, std::uint64_t value, int peer) noexcept;
    Result<void> sleep_until(const Word& word, std::uint64_t value, int peer, TimePoint deadline);
    Result<void> poll_until(const Word& word, std::uint64_t value, int peer, TimePoint deadline);
    std::uint64_t reason_seen() noexcept;
    void report_late(LongWait& wait, const Word& word, std::uint64_t value, int peer,
                     TimePoint now) noexcept;
    bool is_behind(int other, std::uint64_t value) noexcept;
    WaitRecord all_late(std::uint64_t value) noexcept;

    std::byte* block_;
    Visibility view_;
    Meter* meter_ = nullptr;
    GroupHeader* header_;
    RankWords* ranks_;
    TreeWords* tree_words_;
    const Tree* tree_ = nullptr;
    int rank_;
    int world_;
    bool fenced_ = true;  // wakers fence; false once sleepers do it for them
    std::uint64_t spins_ = 100;
    std::uint64_t yields_ = 100;
    std::uint32_t shown_processor_ = 0;  // as in RankWords
    int looked_at_ = 0;  // checked last for life, of those that are not waited for first
    std::vector<std::uint64_t> seen_;  // the highest clock value seen of each rank
    std::uint64_t all_seen_ = 0;       // all ranks have come to this value
    std::uint64_t signalled_ = 0;      // this rank's clock, which a peer can't write
    std::size_t shown_parity_ = 0;     // what show_signature() showed last
    std::uint64_t shown_signature_ = 0;
    bool vote_ = true;                       // of the ranks from this one down, then of all
    std::atomic<const char*> kind_{"join"};  // as begin_operation() said
    std::atomic<Bytes> bytes_{0};
    LongWaits long_waits_;
    // Where memory is not coherent: the first reason that this process observed or gave. Atomic,
    // since the message threads fail and check, too.
    std::atomic<std::uint64_t> reason_{0};
};

}  // namespace fabricshm
