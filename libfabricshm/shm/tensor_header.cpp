#include "libfabricshm/shm/tensor_header.hpp"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <thread>

#include "libfabricshm/base/pause.hpp"
#include "libfabricshm/os/futex.hpp"

namespace fabricshm {

namespace {

// Polls the version before sleeping: a publisher that is about to finish costs no system call.
constexpr int kSpins = 64;

// The owner's death wakes no sleeper, so a sleeper checks for it this often. Also bounds how long a
// sleeper of a tensor whose memory was taken away goes on sleeping.
constexpr Duration kOwnerCheck = std::chrono::milliseconds(200);

// Between the daemon's answer and the maker's first store lie microseconds.
constexpr Duration kMakerCheck = std::chrono::milliseconds(1);

// The high half of `sleepers`: chosen by the key, so that an earlier or later tensor in the same
// memory has another one.
std::uint64_t mark_of(TensorKey key) noexcept {
    const std::uint64_t mixed = (key.region_id * 0x9e3779b97f4a7c15 + key.generation) | 1;
    return mixed << 32;
}

// Counts this thread as a sleeper while it lives. A sleeper that is killed stays counted, which
// costs the publishers a system call each time and is otherwise harmless.
struct Sleeper {
    Sleeper(TensorHeader& header, TensorKey key) : header(header), mark(mark_of(key)) {
        counted = change(+1);
    }
    ~Sleeper() {
        if (counted) change(-1);
    }
    // False when the tensor is gone: the memory may be another owner's by now, and these bytes are
    // changed only as long as they are this tensor's. A waiter that is not counted finds out with
    // its next check, which is never further away than kOwnerCheck.
    bool change(int by) noexcept {
        std::uint64_t seen = header.sleepers.load(std::memory_order_relaxed);
        do {
            if ((seen >> 32) != (mark >> 32)) return false;
            // Sequentially consistent, with the accesses in publish_tensor(): see there.
        } while (!header.sleepers.compare_exchange_weak(
            seen, mark | static_cast<std::uint32_t>(static_cast<std::uint32_t>(seen) + by),
            std::memory_order_seq_cst));
        return true;
    }
    TensorHeader& header;
    const std::uint64_t mark;
    bool counted = false;
};

// What keeps a waiter from going on waiting: the tensor is gone, or its maker is.
Result<void> check_owner(const TensorHeader& header, TensorKey key, const Visibility& view) {
    if (!is_tensor(header, key, view)) return Error{Errc::kNotFound, 0, "wait for tensor"};
    if (liveness_of(maker_of(header)) == Liveness::kDead)
        return Error{Errc::kPeer, -1, "wait for tensor"};
    return {};
}

const std::byte* elements_of(const TensorHeader& header) noexcept {
    return reinterpret_cast<const std::byte*>(&header + 1);
}

// One waiter on one tensor.
struct Wait {
    TensorHeader& header;
    const TensorKey key;
    const std::uint64_t wanted;
    const TimePoint deadline;
    const Visibility& view;

    // Acquire pairs with the addition in publish_tensor(): the elements come with the version.
    std::uint64_t seen() const noexcept {
        view.acquire(TouchPoint::kVersionRead, &header.version, kCacheLine);
        return header.version.load(std::memory_order_acquire);
    }
    bool published() const noexcept { return seen() >= wanted && is_tensor(header, key, view); }

    // The version, an error, or kBusy: nothing yet.
    Result<std::uint64_t> look() const {
        if (published()) return seen();
        const auto state = check_owner(header, key, view);
        if (!state.ok()) {
            // It may have published and then died (or freed) between our two checks.
            if (published()) return seen();
            return state.error();
        }
        if (Clock::now() >= deadline) return Error{Errc::kTimeout, 0, "wait for tensor"};
        return Error{Errc::kBusy, 0, "wait for tensor"};
    }
};

bool goes_on(const Result<std::uint64_t>& looked) noexcept {
    return !looked.ok() && looked.error().code == Errc::kBusy;
}

// Asleep on the word; a publisher wakes us.
Result<std::uint64_t> sleep_for_version(const Wait& wait) {
    const Sleeper sleeper(wait.header, wait.key);
    for (;;) {
        // The word first, then the version: a publication in between changes the word, and the
        // futex returns at once.
        const std::uint32_t word = wait.header.wake_word.load(std::memory_order_seq_cst);
        const auto looked = wait.look();
        if (!goes_on(looked)) return looked;
        futex_wait(&wait.header.wake_word, word,
                   std::min(wait.deadline, Clock::now() + kOwnerCheck));
    }
}

// No process of another host can wake us: poll, nap, poll again.
Result<std::uint64_t> poll_for_version(const Wait& wait) {
    TimePoint owner_check = Clock::now() + kOwnerCheck;
    for (;;) {
        if (wait.published()) return wait.seen();
        const TimePoint now = Clock::now();
        if (now >= owner_check || now >= wait.deadline) {
            const auto looked = wait.look();
            if (!goes_on(looked)) return looked;
            owner_check = now + kOwnerCheck;
        }
        std::this_thread::sleep_for(kNap);
    }
}

}  // namespace

void format_tensor(TensorHeader& header, TensorKey key, const ProcessIdentity& owner,
                   const Visibility& view) noexcept {
    // Relaxed: nothing is read here before the magic says so.
    header.magic.store(0, std::memory_order_relaxed);
    header.region_id = key.region_id;
    header.generation = key.generation;
    header.owner_start_time = owner.start_time;
    header.owner_pid_namespace = owner.pid_namespace;
    header.owner_pid = owner.pid;
    header.reserved = 0;
    header.version.store(0, std::memory_order_relaxed);
    header.wake_word.store(0, std::memory_order_relaxed);
    header.sleepers.store(mark_of(key), std::memory_order_relaxed);
    // Before the magic, which is in the other line and could be seen first.
    view.publish(TouchPoint::kVersion, &header.version, kCacheLine);
    // Release: a reader that sees the magic sees all of the above.
    header.magic.store(kTensorMagic, std::memory_order_release);
    view.publish(TouchPoint::kTensorHeader, &header, kCacheLine);
}

void retire_tensor(TensorHeader& header, const Visibility& view) noexcept {
    header.magic.store(0, std::memory_order_release);
    view.publish(TouchPoint::kRetire, &header, kCacheLine);
    if (!view.coherent()) return;
    // Changed, so that a waiter between its check and its sleep does not sleep.
    header.wake_word.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&header.wake_word, INT_MAX);
}

void restore_tensor(TensorHeader& header, const Visibility& view) noexcept {
    // Release: as in format_tensor().
    header.magic.store(kTensorMagic, std::memory_order_release);
    view.publish(TouchPoint::kTensorHeader, &header, kCacheLine);
}

ProcessIdentity maker_of(const TensorHeader& header) noexcept {
    return {header.owner_pid, header.owner_start_time, header.owner_pid_namespace};
}

bool is_tensor(const TensorHeader& header, TensorKey key, const Visibility& view) noexcept {
    view.acquire(TouchPoint::kTensorHeaderRead, &header, kCacheLine);
    // Acquire pairs with the release in format_tensor().
    return header.magic.load(std::memory_order_acquire) == kTensorMagic &&
           header.region_id == key.region_id && header.generation == key.generation;
}

Result<void> await_tensor(const TensorHeader& header, TensorKey key, TimePoint deadline,
                          const Visibility& view) {
    for (int look = 0; !is_tensor(header, key, view); ++look) {
        if (look < kSpins) {
            ::sched_yield();
            continue;
        }
        if (Clock::now() >= deadline) return Error{Errc::kTimeout, 0, "wait for tensor's maker"};
        // A nap by futex on a word that does not change: the maker has nothing to wake us with,
        // since its words may still hold what an earlier tensor left.
        const std::uint32_t word = header.wake_word.load(std::memory_order_relaxed);
        futex_wait(&header.wake_word, word, std::min(deadline, Clock::now() + kMakerCheck));
    }
    return {};
}

std::uint64_t publish_tensor(TensorHeader& header, Bytes bytes, const Visibility& view) noexcept {
    view.publish(TouchPoint::kElements, elements_of(header), bytes);
    if (!view.coherent()) {
        // Another host may have published the last version. Plain steps: an addition that works
        // across hosts does not exist, and no process sleeps.
        view.acquire(TouchPoint::kVersionBefore, &header.version, kCacheLine);
        const auto next = header.version.load(std::memory_order_relaxed) + 1;
        header.version.store(next, std::memory_order_release);
        view.publish(TouchPoint::kVersion, &header.version, kCacheLine);
        return next;
    }
    // Release, to publish the elements; sequentially consistent like the two accesses below,
    // because this thread stores (word) then loads (sleepers) while a waiter stores (sleepers) then
    // loads (word): one of the two has to see the other, or the waiter would sleep on.
    const auto version = header.version.fetch_add(1, std::memory_order_seq_cst) + 1;
    header.wake_word.fetch_add(1, std::memory_order_seq_cst);
    view.publish(TouchPoint::kVersion, &header.version, kCacheLine);
    if (sleepers_on(header) != 0) {
        futex_wake(&header.wake_word, INT_MAX);
    }
    return version;
}

Result<std::uint64_t> wait_for_version(TensorHeader& header, TensorKey key, std::uint64_t wanted,
                                       TimePoint deadline, Bytes bytes, const Visibility& view) {
    const Wait wait{header, key, wanted, deadline, view};
    bool there = false;
    for (int spin = 0; spin < kSpins && !there; ++spin) there = wait.published();
    const auto found = there               ? Result<std::uint64_t>(wait.seen())
                       : view.one_kernel() ? sleep_for_version(wait)
                                           : poll_for_version(wait);
    if (found.ok()) view.acquire(TouchPoint::kElementsRead, elements_of(header), bytes);
    return found;
}

}  // namespace fabricshm
