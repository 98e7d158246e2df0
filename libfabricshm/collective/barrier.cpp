#include "libfabricshm/collective/barrier.hpp"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <thread>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/late_rank.hpp"
#include "libfabricshm/base/pause.hpp"
#include "libfabricshm/os/futex.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricshm {

namespace {

constexpr std::uint64_t kYieldsPerLook = 8;
constexpr std::uint64_t kTurnsPerLook = 256;

using ProcessorSet = std::array<std::uint64_t, kProcessorWords>;

// Where this thread may run, by the numbers modulo the size of the set: on a larger machine two may
// fall together, and a group that uses both be taken for one with a processor less.
ProcessorSet usable_processors() noexcept {
    ProcessorSet found{};
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) != 0) {
        found.fill(~std::uint64_t{0});  // more than a static set holds: not one that is pinned
        return found;
    }
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &set)) continue;
        const std::size_t bit = cpu % (64 * found.size());
        found[bit / 64] |= std::uint64_t{1} << bit % 64;
    }
    return found;
}

int membarrier(int command) noexcept {
    return static_cast<int>(::syscall(SYS_membarrier, command, 0, 0));
}

// The futex of a 64-bit word is its low half, which is first in memory on x86.
std::atomic<std::uint32_t>* low_half(std::atomic<std::uint64_t>& word) noexcept {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(&word);
}

bool has_departed(const Visibility& view, const RankWords& words, int peer) noexcept {
    if (!view.coherent()) {
        view.acquire(TouchPoint::kFailureRead, &words.failure, kCacheLine, peer);
    }
    // Acquire pairs with depart(): a failure that the rank reported before is seen after it.
    return words.departed.load(std::memory_order_acquire) != 0;
}

// Counted among the sleepers of a word for as long as it lives.
class SleeperCount {
  public:
    explicit SleeperCount(std::atomic<std::uint32_t>& sleepers) noexcept : sleepers_(sleepers) {
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
    }
    // Relaxed: a waker that still finds it wakes no process, and loses a system call.
    ~SleeperCount() { sleepers_.fetch_sub(1, std::memory_order_relaxed); }
    SleeperCount(const SleeperCount&) = delete;
    SleeperCount& operator=(const SleeperCount&) = delete;

  private:
    std::atomic<std::uint32_t>& sleepers_;
};

}  // namespace

Barrier::Barrier(std::byte* block, int rank, int world, const Visibility& view)
    : block_(block),
      view_(view),
      header_(reinterpret_cast<GroupHeader*>(block)),
      ranks_(reinterpret_cast<RankWords*>(block + GroupLayout::of(world).ranks)),
      tree_words_(reinterpret_cast<TreeWords*>(block + GroupLayout::of(world).tree)),
      rank_(rank),
      world_(world),
      seen_(static_cast<std::size_t>(world), 0) {
    // This rank has always seen itself.
    seen_[static_cast<std::size_t>(rank)] = ~std::uint64_t{0};
}

Result<void> Barrier::announce(const RankPlace& place) {
    FABRIC_TRY(const ProcessIdentity identity, own_identity());
    RankWords& words = own();
    words.pid = identity.pid;
    words.start_time = identity.start_time;
    words.pid_namespace = identity.pid_namespace;
    words.membarrier = membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0 ? 1 : 0;
    words.kernel = own_kernel();
    const ProcessorSet usable = usable_processors();
    std::copy(usable.begin(), usable.end(), words.processors);
    view_.publish(TouchPoint::kIdentity, &words.pid, 2 * kCacheLine);
    tree_words_[rank_].node = place.node;
    tree_words_[rank_].cache = place.cache;
    FAULT_POINT("group.announced");
    return {};
}

int Barrier::processors() const noexcept {
    int found = 0;
    for (int rank = 0; rank < world_; ++rank) {
        if (rank != rank_) {
            view_.acquire(TouchPoint::kIdentityRead, &words(rank).pid, 2 * kCacheLine, rank);
        }
        // Once for each kernel, by its first rank.
        const std::uint64_t kernel = words(rank).kernel;
        bool first = true;
        for (int before = 0; before < rank; ++before) {
            first = first && words(before).kernel != kernel;
        }
        if (!first) continue;
        found += processors_of(kernel, rank);
    }
    return found;
}

// Of the ranks on one kernel, the first of which is `from`.
int Barrier::processors_of(std::uint64_t kernel, int from) const noexcept {
    std::array<std::uint64_t, kProcessorWords> together{};
    int ranks = 0;
    for (int rank = from; rank < world_; ++rank) {
        if (rank != rank_) {
            view_.acquire(TouchPoint::kIdentityRead, &words(rank).pid, 2 * kCacheLine, rank);
        }
        if (words(rank).kernel != kernel) continue;
        ++ranks;
        for (std::size_t i = 0; i < together.size(); ++i) {
            together[i] |= words(rank).processors[i];
        }
    }
    int processors = 0;
    for (const std::uint64_t word : together) processors += std::popcount(word);
    return std::min(processors, ranks);
}

void Barrier::settle(const Tuning& tuning) noexcept {
    bool all = true;
    for (int peer = 0; peer < world_; ++peer) {
        if (peer != rank_) {
            view_.acquire(TouchPoint::kIdentityRead, &words(peer).pid, kCacheLine, peer);
        }
        all = all && words(peer).membarrier == 1;
    }
    // A membarrier() reaches the processors of its own kernel alone.
    fenced_ = !all || !view_.one_kernel();
    spins_ = tuning.spins;
    yields_ = tuning.yields;
}

std::uint64_t Barrier::spins_for(int peer) const noexcept {
    if (peer < 0) return spins_;
    const auto theirs = words(peer).processor.load(std::memory_order_relaxed);
    const auto ours = static_cast<std::uint32_t>(::sched_getcpu() + 1);
    return theirs == ours ? 0 : spins_;
}

void Barrier::wake_sleepers(const Word& word) noexcept {
    futex_wake(low_half(word.value), INT_MAX);
}

Result<void> Barrier::gather(std::uint64_t value, TimePoint deadline) {
    for (const int child : tree_->nodes[static_cast<std::size_t>(rank_)].children) {
        FABRIC_TRY_VOID(wait(child, value, deadline));
        // Relaxed: stored before the clock that was acquired, and the next operation of this parity
        // waits for this rank.
        const auto theirs = words(child).signature[shown_parity_].load(std::memory_order_relaxed);
        if (theirs != shown_signature_) return Error{Errc::kMismatch, child, "collective"};
        vote_ = vote_ && words(child).unchanged.load(std::memory_order_relaxed) != 0;
    }
    own().unchanged.store(vote_ ? 1 : 0, std::memory_order_relaxed);
    return {};
}

Result<void> Barrier::await_release(std::uint64_t value, TimePoint deadline) {
    const int parent = tree_->nodes[static_cast<std::size_t>(rank_)].parent;
    if (parent >= 0) {
        const Word word = release_of(parent);
        view_.acquire(word.seen, &word.value, kCacheLine, parent);
        // Acquire pairs with the release in raise(): what any rank stored before it came is visible
        // now, since each rank on the way acquired it before it handed the word on.
        const bool there = word.value.load(std::memory_order_acquire) >= value;
        if (!there) FABRIC_TRY_VOID(await(word, value, parent, deadline));
        vote_ = tree_words_[parent].release.unchanged.load(std::memory_order_relaxed) != 0;
    }
    all_seen_ = value;
    return {};
}

void Barrier::release(std::uint64_t value) noexcept {
    if (tree_->nodes[static_cast<std::size_t>(rank_)].children.empty()) return;
    // Relaxed: the release of the word makes it visible before.
    tree_words_[rank_].release.unchanged.store(vote_ ? 1 : 0, std::memory_order_relaxed);
    raise(release_of(rank_), value);
}

Result<void> Barrier::pass_along_tree(std::uint64_t value, TimePoint deadline) {
    if (const auto gathered = gather(value, deadline); !gathered.ok()) {
        return name_late(gathered.error(), value);
    }
    signal(value);
    if (const auto released = await_release(value, deadline); !released.ok()) {
        return name_late(released.error(), value);
    }
    FAULT_POINT("tree.released");
    release(value);
    return {};
}

// Waiting for the rank above: it may be in another operation, in which it does not need this one.
Result<void> Barrier::check_release(std::uint64_t value, int parent) noexcept {
    const RankWords& above = words(parent);
    // Acquire: what the rank above called, and whether it let this rank go on, is at least as new.
    // Before it lets any rank go on it comes no further than this.
    if (above.clock.load(std::memory_order_acquire) < value) return {};
    const auto theirs = above.signature[shown_parity_].load(std::memory_order_acquire);
    if (release_of(parent).value.load(std::memory_order_acquire) >= value) return {};
    return theirs == shown_signature_ ? Result<void>()
                                      : Error{Errc::kMismatch, parent, "collective"};
}

Error Barrier::name_late(const Error& error, std::uint64_t value) noexcept {
    if (error.code != Errc::kTimeout) return error;
    int late = 0;
    for (bool below = true; below;) {
        below = false;
        for (const int child : tree_->nodes[static_cast<std::size_t>(late)].children) {
            // Relaxed: only a name is made of it.
            below = words(child).clock.load(std::memory_order_relaxed) < value;
            if (below) late = child;
            if (below) break;
        }
    }
    return Error{error.code, late, error.step};
}

Result<void> Barrier::wait_slowly(int peer, std::uint64_t value, TimePoint deadline) {
    FABRIC_TRY_VOID(await(clock_of(peer), value, peer, deadline));
    // Acquire: the peer may have gone on meanwhile, and what it did up to the value that is
    // remembered here is not waited for again.
    seen_[static_cast<std::size_t>(peer)] = words(peer).clock.load(std::memory_order_acquire);
    return {};
}

Result<void> Barrier::await(const Word& word, std::uint64_t value, int peer, TimePoint deadline) {
    if (!view_.one_kernel()) return poll_until(word, value, peer, deadline);
    const auto reached = [&] {
        view_.acquire(word.seen, &word.value, sizeof value, peer);
        // Acquire, against the release in raise(): what was stored before the value is seen with
        // it.
        return word.value.load(std::memory_order_acquire) >= value;
    };
    WaitTimer timer(meter_);
    TimePoint awake_until;
    // A few pauses between yields, not many at once: the scheduler may have put the one that is
    // waited for on this very core, and then every pause holds it up.
    for (std::uint64_t turn = 0; turn <= yields_; ++turn) {
        // Behind a policy a poll takes time of its own. As many as on memory that answers at once
        // would put off the sleep, and with it the check for a dead peer, for minutes.
        const std::uint64_t spins = view_.active() ? 0 : spins_for(peer);
        for (std::uint64_t spin = 0; spin < spins; ++spin) {
            if (reached()) return {};
            pause_cpu();
        }
        if (reached()) return {};
        timer.begin();
        std::this_thread::yield();
        if (turn % kYieldsPerLook == kYieldsPerLook - 1) {
            const TimePoint now = Clock::now();
            if (turn < kYieldsPerLook) awake_until = now + kMaxAwake;
            if (now >= awake_until) break;
        }
    }
    return sleep_until(word, value, peer, deadline);
}

Result<void> Barrier::sleep_until(const Word& word, std::uint64_t value, int peer,
                                  TimePoint deadline) {
    // Once for the whole sleep: a rank that raises the word from here on finds this process
    // counted, so what the membarrier() orders for the first poll holds for all. Sequentially
    // consistent with the fence in raise(); see there.
    const SleeperCount count(word.sleepers);
    LongWait wait(rank_, world_, long_waits_.from, long_waits_.screen);
    if (!fenced_) membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    while (true) {
        const std::uint64_t now_there = word.value.load(std::memory_order_seq_cst);
        const TimePoint slice_end = std::min(deadline, Clock::now() + kSleepSlice);
        if (now_there < value) {
            futex_wait(low_half(word.value), static_cast<std::uint32_t>(now_there), slice_end);
        }
        if (word.value.load(std::memory_order_acquire) >= value) return {};
        if (const auto state = check(peer); !state.ok()) {
            // It may have come and then ended between our two checks.
            if (word.value.load(std::memory_order_acquire) >= value) return {};
            return state;
        }
        FABRIC_TRY_VOID(check_others(word, value, peer));
        const TimePoint now = Clock::now();
        if (now >= deadline) return Error{Errc::kTimeout, peer, kPeerWaitStep};
        report_late(wait, word, value, peer, now);
    }
}

bool Barrier::is_behind(int other, std::uint64_t value) noexcept {
    const Word clock = clock_of(other);
    view_.acquire(clock.seen, &clock.value, sizeof value, other);
    // Acquire, as everywhere; only a name is made of it.
    return clock.value.load(std::memory_order_acquire) < value;
}

// All ranks that have not come to `value`. Along the tree a clock rises when all below have come,
// so that those count whose clock stands although no rank below them is late.
WaitRecord Barrier::all_late(std::uint64_t value) noexcept {
    WaitRecord record{};
    for (int other = 0; other < world_; ++other) {
        if (other == rank_ || !is_behind(other, value)) continue;
        bool below = false;
        if (tree_ != nullptr) {
            for (const int child : tree_->nodes[static_cast<std::size_t>(other)].children) {
                below = below || is_behind(child, value);
            }
        }
        if (!below) add_late(record, other);
    }
    return record;
}

// Along the tree the rank that is late may be another one than the one that is waited for.
void Barrier::report_late(LongWait& wait, const Word& word, std::uint64_t value, int peer,
                          TimePoint now) noexcept {
    const bool is_due = wait.is_due(now);
    const bool is_shown = wait.is_shown_at(now);
    if (!is_due && !is_shown) return;
    const bool of_operation = word.seen == TouchPoint::kClockRead ||
                              word.seen == TouchPoint::kCommandRead ||
                              word.seen == TouchPoint::kTreeRead || word.seen == TouchPoint::kTree;
    int late = peer;
    if (of_operation && tree_ != nullptr) {
        late = name_late(Error{Errc::kTimeout, peer, ""}, value).detail;
    }
    if (late < 0 || late >= world_ || late == rank_) late = peer;
    if (late < 0 || late >= world_) return;
    const bool of_step = word.seen == TouchPoint::kStepRead;
    Doing doing{of_step ? "a step" : "a message", 0};
    if (of_operation) {
        doing = {kind_.load(std::memory_order_relaxed), bytes_.load(std::memory_order_relaxed)};
    }
    if (is_due) wait.say(late, words(late).pid, doing, now);
    if (!is_shown) return;
    WaitRecord record = of_operation ? all_late(value) : WaitRecord{};
    // A rank below that waits for its release: all have come, and the one above lets it wait.
    if (std::ranges::all_of(record.late, [](std::uint64_t bits) { return bits == 0; })) {
        add_late(record, late);
    }
    wait.show(record, of_operation ? doing : Doing{of_step ? "step" : "message", 0}, now);
}

void Barrier::enlist(const Word& word) noexcept {
    // The sleeper's half of what raise() says: sequentially consistent, or a membarrier() to all
    // others.
    word.sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (!fenced_) membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

void Barrier::doze(const Word& word, std::uint64_t seen, TimePoint until) noexcept {
    // Sequentially consistent with the additions of those that ring.
    if (word.value.load(std::memory_order_seq_cst) == seen) {
        futex_wait(low_half(word.value), static_cast<std::uint32_t>(seen), until);
    }
    word.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

bool Barrier::idle(std::uint64_t turn) const noexcept {
    if (turn < spins_) {
        pause_cpu();
        return false;
    }
    if (turn < spins_ + yields_) {
        std::this_thread::yield();
        return false;
    }
    std::this_thread::sleep_for(kNap);
    return true;
}

Result<void> Barrier::poll_until(const Word& word, std::uint64_t value, int peer,
                                 TimePoint deadline) {
    const auto reached = [&] {
        view_.acquire(word.seen, &word.value, sizeof value, peer);
        // Acquire: as in wait(). What the flag announces is acquired by its reader.
        return word.value.load(std::memory_order_acquire) >= value;
    };
    WaitTimer timer(meter_);
    LongWait wait(rank_, world_, long_waits_.from, long_waits_.screen);
    for (std::uint64_t turn = 0;; ++turn) {
        if (reached()) return {};
        timer.begin();
        // Pauses and yields may be set to millions: now and then it checks all the same.
        if (!idle(turn) && turn % kTurnsPerLook != kTurnsPerLook - 1) continue;
        if (const auto state = check(peer); !state.ok()) {
            // It may have come and then died between our two checks.
            return reached() ? Result<void>() : state;
        }
        FABRIC_TRY_VOID(check_others(word, value, peer));
        const TimePoint now = Clock::now();
        if (now >= deadline) return Error{Errc::kTimeout, peer, kPeerWaitStep};
        report_late(wait, word, value, peer, now);
    }
}

// Why the group is broken, or 0. On coherent memory one word says so for all. Elsewhere each rank
// has its own, and two ranks that fail at the same moment may name different culprits; a process
// keeps to the first that it observed.
std::uint64_t Barrier::reason_seen() noexcept {
    // Acquire pairs with break_group(); the word holds code and rank together.
    if (view_.coherent()) return header_->broken.load(std::memory_order_acquire);
    for (int peer = 0; peer < world_; ++peer) {
        const std::uint64_t known = reason_.load(std::memory_order_acquire);
        if (known != 0) return known;
        if (peer == rank_) continue;
        view_.acquire(TouchPoint::kFailureRead, &words(peer).failure, kCacheLine, peer);
        const std::uint64_t theirs = words(peer).failure.load(std::memory_order_acquire);
        std::uint64_t nothing = 0;
        if (theirs != 0) reason_.compare_exchange_strong(nothing, theirs);
    }
    return reason_.load(std::memory_order_acquire);
}

Result<void> Barrier::check(int peer, bool may_leave) noexcept {
    if (const auto state = check_reason(); !state.ok()) return state;
    if (peer < 0) return {};
    auto alive = check_alive(peer);
    if (alive.ok()) return {};
    // Asked after that: a rank that leaves may end at once.
    if (may_leave && has_departed(view_, ranks_[peer], peer)) alive = {};
    // Once more: a rank that leaves because of a failure said so before it left, and the failure is
    // the reason to name, not the leaving.
    const auto reason = check_reason();
    return reason.ok() ? alive : reason;
}

Result<void> Barrier::check_reason() noexcept {
    const std::uint64_t reason = reason_seen();
    if (reason == 0) return {};
    const auto code = static_cast<Errc>(reason & 0xff);
    const auto culprit = static_cast<std::int32_t>(reason >> 32);
    const bool names = code == Errc::kPeer || code == Errc::kMismatch || code == Errc::kPoisoned;
    // Another rank gave up its wait for that one.
    const bool is_late = code == Errc::kTimeout && culprit >= 0;
    return Error{names ? code : Errc::kBroken, culprit, is_late ? kPeerLateStep : "collective"};
}

// Whether the daemon marked the rank dead, or it left by itself. Callers recheck the word they wait
// for, since the rank may have come before.
bool Barrier::is_gone(int peer) noexcept {
    const RankWords& words = ranks_[peer];
    view_.acquire(TouchPoint::kDeadRead, &words.dead, kCacheLine, peer);
    // Relaxed: the mark stands for itself.
    return words.dead.load(std::memory_order_relaxed) != 0 || has_departed(view_, words, peer);
}

Result<void> Barrier::check_alive(int peer) noexcept {
    const RankWords& words = ranks_[peer];
    if (is_gone(peer)) return Error{Errc::kPeer, peer, "collective"};
    // A rank that has not announced itself has no identity yet; the deadline bounds that wait.
    if (words.clock.load(std::memory_order_acquire) == 0) return {};
    view_.acquire(TouchPoint::kIdentityRead, &words.pid, kCacheLine, peer);
    const ProcessIdentity identity{static_cast<pid_t>(words.pid), words.start_time,
                                   words.pid_namespace};
    if (liveness_of(identity) == Liveness::kDead) return Error{Errc::kPeer, peer, "collective"};
    return {};
}

bool Barrier::has_left(int peer, std::uint64_t at) noexcept {
    // Acquire pairs with leave(): the peer's stores come before it.
    if (words(peer).left.load(std::memory_order_acquire) >= at) return true;
    // Not arrived: when it does it finds the group broken, and shows itself out. See below.
    if (words(peer).clock.load(std::memory_order_acquire) < at) return true;
    return !check_alive(peer).ok();
}

void Barrier::depart() noexcept {
    // Release: what this rank did in its operations, its clock above all, comes before it.
    own().departed.store(1, std::memory_order_release);
    if (!view_.coherent()) {
        // There the waiters poll, and no line has two writers.
        view_.publish(TouchPoint::kFailure, &own().failure, kCacheLine);
        // What this rank stored in the block and no other had to see (hints, its own part of a
        // post) leaves its caches now: later it would land on whatever the memory is used for next.
        view_.acquire(TouchPoint::kRegionReturn, block_, GroupLayout::of(world_).total);
        return;
    }
    wake(clock_of(rank_));
    wake(release_of(rank_));
    for (int peer = 0; peer < world_; ++peer) {
        // Sequentially consistent: a locked instruction, as in every ring of a bell.
        words(peer).bell.fetch_add(1, std::memory_order_seq_cst);
        wake({words(peer).bell, words(peer).bell_sleepers, TouchPoint::kBell,
              TouchPoint::kBellRead});
    }
}

// A peer that arrives raises its clock and then checks whether the group is broken; this process
// has broken it and then checks the clock. One of the two must see the other, for which the peer's
// store and load must not change places: either it stores sequentially consistent (fenced_), or the
// membarrier() sent to it here comes between the two.
Result<void> Barrier::await_leaving(std::uint64_t at, TimePoint deadline) noexcept {
    // A locked instruction: what this process did to break the group comes before its checks below.
    // An exchange and no fence, which the thread sanitizer does not know.
    own().left.fetch_or(0, std::memory_order_seq_cst);
    if (!fenced_) membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    for (int peer = 0; peer < world_; ++peer) {
        for (std::uint64_t turn = 0; peer != rank_ && !has_left(peer, at); ++turn) {
            const bool late = Clock::now() >= deadline;
            if (late) return Error{Errc::kTimeout, peer, "wait for a peer to leave"};
            (void)idle(turn);
        }
    }
    return {};
}

// The rank that is waited for may be alive and yet never come: a death was reported to it
// elsewhere, in a message for example. So the other ranks that have yet to come to `value` are
// checked as well: all of them for the daemon's marks, and one per slice, in turn, for a death
// without a mark.
Result<void> Barrier::check_others(const Word& word, std::uint64_t value, int peer) noexcept {
    // A rank that waits for its release along the tree checks the rank above alone. That one waits
    // in turn, for its release or for clocks; the last of them, rank 0, for clocks, and checks all
    // below.
    if (peer >= 0 && &word.value == &release_of(peer).value) return check_release(value, peer);
    // Messages wait on other words: they concern two ranks, whatever happens to a third.
    const bool of_clock =
        peer >= 0 && (&word.value == &words(peer).clock || &word.value == &header_->command);
    if (!of_clock) return {};
    // A rank that has come as far has done its part, and may since have left the group and ended.
    // Acquire, as everywhere: no data is read after it here, but a clock has one rule.
    const auto is_awaited = [&](int other) {
        if (other == rank_) return false;
        const Word clock = clock_of(other);
        view_.acquire(clock.seen, &clock.value, sizeof value, other);
        return clock.value.load(std::memory_order_acquire) < value;
    };
    for (int other = 0; other < world_; ++other) {
        if (other != rank_ && is_gone(other) && is_awaited(other)) return check(other);
    }
    looked_at_ = (looked_at_ + 1) % world_;
    if (!is_awaited(looked_at_)) return {};
    const auto found = check(looked_at_);
    // Asked again after that: it may have come meanwhile, and left in order.
    return found.ok() || is_awaited(looked_at_) ? found : check_reason();
}

void Barrier::fail(Errc code, int rank) noexcept {
    if (view_.coherent()) return break_group(block_, world_, code, rank);
    const std::uint64_t reason = failure_reason(code, rank);
    std::uint64_t nothing = 0;
    if (!reason_.compare_exchange_strong(nothing, reason)) return;  // all know, or will
    own().failure.store(reason, std::memory_order_release);
    view_.publish(TouchPoint::kFailure, &own().failure, kCacheLine);
}

}  // namespace fabricshm
