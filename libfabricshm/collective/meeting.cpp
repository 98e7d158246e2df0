#include "libfabricshm/collective/meeting.hpp"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <thread>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/os/futex.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricshm {

namespace {

// How long a sleeper trusts that a dead peer would have been announced before it looks for itself.
constexpr auto kSleepSlice = std::chrono::milliseconds(20);

// Pauses and yields multiply, and come from a file or from what the job shares: together they could
// be hours before the first look for a dead peer.
constexpr auto kAwakeMost = std::chrono::milliseconds(100);
constexpr std::uint64_t kYieldsPerLook = 8;
constexpr std::uint64_t kTurnsPerLook = 256;

// Between two looks at a word that nobody can wake us for. Long enough to leave the core to the
// rank that is waited for, short beside the operations that make a rank wait this long.
constexpr auto kNap = std::chrono::microseconds(50);

int membarrier(int command) noexcept {
    return static_cast<int>(::syscall(SYS_membarrier, command, 0, 0));
}

void pause_cpu() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// The futex of a 64-bit word is its low half, which is first in memory on x86.
std::atomic<std::uint32_t>* low_half(std::atomic<std::uint64_t>& word) noexcept {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(&word);
}

}  // namespace

Meeting::Meeting(std::byte* block, int rank, int world, const Visibility& view)
    : block_(block),
      view_(view),
      header_(reinterpret_cast<GroupHeader*>(block)),
      ranks_(reinterpret_cast<RankWords*>(block + GroupLayout::of(world).ranks)),
      rank_(rank),
      world_(world),
      seen_(static_cast<std::size_t>(world), 0) {
    // This rank has always seen itself.
    seen_[static_cast<std::size_t>(rank)] = ~std::uint64_t{0};
}

Result<void> Meeting::announce() {
    FABRIC_TRY(const ProcessIdentity identity, own_identity());
    RankWords& words = own();
    words.pid = identity.pid;
    words.start_time = identity.start_time;
    words.pid_namespace = identity.pid_namespace;
    words.membarrier = membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0 ? 1 : 0;
    view_.publish(TouchPoint::kIdentity, &words.pid, kCacheLine);
    FAULT_POINT("group.announced");
    return {};
}

void Meeting::settle(const Tuning& tuning) noexcept {
    bool all = true;
    for (int peer = 0; peer < world_; ++peer) {
        if (peer != rank_) {
            view_.acquire(TouchPoint::kIdentityRead, &words(peer).pid, kCacheLine, peer);
        }
        all = all && words(peer).membarrier == 1;
    }
    fenced_ = !all;
    spins_ = tuning.spins;
    yields_ = tuning.yields;
}

// Two nanoseconds: the kernel keeps the number in the thread's memory (rseq).
void Meeting::show_processor() noexcept {
    const auto now = static_cast<std::uint32_t>(::sched_getcpu() + 1);
    if (now == shown_processor_) return;
    shown_processor_ = now;
    // Relaxed, here and where it is read: a hint. An old one costs a spin in vain, or a yield.
    own().processor.store(now, std::memory_order_relaxed);
}

std::uint64_t Meeting::spins_for(int peer) const noexcept {
    if (peer < 0) return spins_;
    const auto theirs = words(peer).processor.load(std::memory_order_relaxed);
    const auto ours = static_cast<std::uint32_t>(::sched_getcpu() + 1);
    return theirs == ours ? 0 : spins_;
}

void Meeting::raise(const Word& word, std::uint64_t value) noexcept {
    view_.step(PoolStep::kSignal);
    if (!view_.coherent()) {
        // Release: within this host's caches, everything stored before comes first. All of it was
        // published before, and the line of the word is published last.
        word.value.store(value, std::memory_order_release);
        view_.publish(word.raised, &word.value, sizeof value);
        return;
    }
    // A sleeper first adds itself to `sleepers` and then looks at `value` once more; this process
    // stores `value` and then looks at `sleepers`. One of the two must see the other, but the
    // processor may move our load before our store. So either both are sequentially consistent
    // (fenced_), or every sleeper sends a barrier to all our processors between its two steps, and
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

void Meeting::wake(const Word& word) noexcept {
    // Sequentially consistent: our half of what raise() says, where that stored in the same order.
    if (__builtin_expect(word.sleepers.load(std::memory_order_seq_cst) != 0, false)) {
        futex_wake(low_half(word.value), INT_MAX);
    }
}

Result<void> Meeting::wait_slowly(int peer, std::uint64_t value, TimePoint deadline) {
    FABRIC_TRY_VOID(await(clock_of(peer), value, peer, deadline));
    // Acquire: the peer may have gone on meanwhile, and what it did up to the value that is
    // remembered here is not waited for again.
    seen_[static_cast<std::size_t>(peer)] = words(peer).clock.load(std::memory_order_acquire);
    return {};
}

Result<void> Meeting::await(const Word& word, std::uint64_t value, int peer, TimePoint deadline) {
    if (!view_.coherent()) return poll_until(word, value, peer, deadline);
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
        // Behind a policy a look takes time of its own. As many as on memory that answers at once
        // would put off the sleep, and with it the look for a dead peer, for minutes.
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
            if (turn < kYieldsPerLook) awake_until = now + kAwakeMost;
            if (now >= awake_until) break;
        }
    }
    return sleep_until(word, value, peer, deadline);
}

Result<void> Meeting::sleep_until(const Word& word, std::uint64_t value, int peer,
                                  TimePoint deadline) {
    while (true) {
        // Sequentially consistent with the fence in raise(); see there.
        word.sleepers.fetch_add(1, std::memory_order_seq_cst);
        if (!fenced_) membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
        const std::uint64_t now_there = word.value.load(std::memory_order_seq_cst);
        const TimePoint slice_end = std::min(deadline, Clock::now() + kSleepSlice);
        if (now_there < value) {
            futex_wait(low_half(word.value), static_cast<std::uint32_t>(now_there), slice_end);
        }
        word.sleepers.fetch_sub(1, std::memory_order_relaxed);
        if (word.value.load(std::memory_order_acquire) >= value) return {};
        if (const auto state = check(peer); !state.ok()) {
            // It may have come and then ended between our two looks.
            if (word.value.load(std::memory_order_acquire) >= value) return {};
            return state;
        }
        FABRIC_TRY_VOID(check_others(word, value, peer));
        if (Clock::now() >= deadline) return Error{Errc::kTimeout, peer, "wait for a peer"};
    }
}

bool Meeting::idle(std::uint64_t turn) const noexcept {
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

Result<void> Meeting::poll_until(const Word& word, std::uint64_t value, int peer,
                                 TimePoint deadline) {
    const auto reached = [&] {
        view_.acquire(word.seen, &word.value, sizeof value, peer);
        // Acquire: as in wait(). What the flag tells of is acquired by whoever reads it.
        return word.value.load(std::memory_order_acquire) >= value;
    };
    WaitTimer timer(meter_);
    for (std::uint64_t turn = 0;; ++turn) {
        if (reached()) return {};
        timer.begin();
        // Pauses and yields may be set to millions: now and then it looks all the same.
        if (!idle(turn) && turn % kTurnsPerLook != kTurnsPerLook - 1) continue;
        if (const auto state = check(peer); !state.ok()) {
            // It may have come and then died between our two looks.
            return reached() ? Result<void>() : state;
        }
        FABRIC_TRY_VOID(check_others(word, value, peer));
        if (Clock::now() >= deadline) return Error{Errc::kTimeout, peer, "wait for a peer"};
    }
}

// Why the group is broken, or 0. On coherent memory one word says so for all. Elsewhere each rank
// has its own, and two ranks that fail at the same moment may name different culprits; a process
// keeps to the first that it saw.
std::uint64_t Meeting::reason_seen() noexcept {
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

Result<void> Meeting::check(int peer) noexcept {
    const std::uint64_t reason = reason_seen();
    if (reason != 0) {
        const auto code = static_cast<Errc>(reason & 0xff);
        const auto culprit = static_cast<std::int32_t>(reason >> 32);
        const bool names =
            code == Errc::kPeer || code == Errc::kMismatch || code == Errc::kPoisoned;
        return Error{names ? code : Errc::kBroken, culprit, "collective"};
    }
    return peer < 0 ? Result<void>() : check_alive(peer);
}

Result<void> Meeting::check_alive(int peer) noexcept {
    const RankWords& words = ranks_[peer];
    view_.acquire(TouchPoint::kDeadRead, &words.dead, kCacheLine, peer);
    if (words.dead.load(std::memory_order_relaxed) != 0)
        return Error{Errc::kPeer, peer, "collective"};
    // A rank that has not announced itself has no identity yet; the deadline bounds that wait.
    if (words.clock.load(std::memory_order_acquire) == 0) return {};
    view_.acquire(TouchPoint::kIdentityRead, &words.pid, kCacheLine, peer);
    const ProcessIdentity identity{static_cast<pid_t>(words.pid), words.start_time,
                                   words.pid_namespace};
    if (liveness_of(identity) == Liveness::kDead) return Error{Errc::kPeer, peer, "collective"};
    return {};
}

bool Meeting::has_left(int peer, std::uint64_t at) noexcept {
    // Acquire pairs with leave(): the peer's stores come before it.
    if (words(peer).left.load(std::memory_order_acquire) >= at) return true;
    // Not arrived: when it does it finds the group broken, and shows itself out. See below.
    if (words(peer).clock.load(std::memory_order_acquire) < at) return true;
    return !check_alive(peer).ok();
}

// A peer that arrives raises its clock and then looks whether the group is broken; this process has
// broken it and then looks at the clock. One of the two must see the other, for which the peer's
// store and load must not change places: either it stores sequentially consistent (fenced_), or the
// barrier sent to it here comes between the two.
Result<void> Meeting::await_leaving(std::uint64_t at, TimePoint deadline) noexcept {
    // A locked instruction: what this process did to break the group comes before its looks below.
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

// The rank that is waited for may be alive and yet never come: it was told of a death elsewhere, in
// a message for example. So the other ranks that have yet to come to `value` are looked at as well:
// at once for what the daemon marked, and one per slice, in turn, for what nobody marked.
Result<void> Meeting::check_others(const Word& word, std::uint64_t value, int peer) noexcept {
    // Messages wait on other words: they concern two ranks, whatever happens to a third.
    const bool of_clock =
        peer >= 0 && (&word.value == &words(peer).clock || &word.value == &header_->command);
    if (!of_clock) return {};
    // Who has come as far has done its part, and may since have left the group and ended. Acquire,
    // as everywhere: no data is read after it here, but a clock has one rule.
    const auto is_awaited = [&](int other) {
        const Word clock = clock_of(other);
        view_.acquire(clock.seen, &clock.value, sizeof value, other);
        return other != rank_ && clock.value.load(std::memory_order_acquire) < value;
    };
    for (int other = 0; other < world_; ++other) {
        view_.acquire(TouchPoint::kDeadRead, &words(other).dead, kCacheLine, other);
        // Relaxed: the mark stands for itself.
        const bool dead = words(other).dead.load(std::memory_order_relaxed) != 0;
        if (dead && is_awaited(other)) return Error{Errc::kPeer, other, "collective"};
    }
    looked_at_ = (looked_at_ + 1) % world_;
    return is_awaited(looked_at_) ? check(looked_at_) : Result<void>();
}

void Meeting::fail(Errc code, int rank) noexcept {
    if (view_.coherent()) return break_group(block_, world_, code, rank);
    const std::uint64_t reason = failure_reason(code, rank);
    std::uint64_t nothing = 0;
    if (!reason_.compare_exchange_strong(nothing, reason)) return;  // all know, or will
    own().failure.store(reason, std::memory_order_release);
    view_.publish(TouchPoint::kFailure, &own().failure, kCacheLine);
}

}  // namespace fabricshm
