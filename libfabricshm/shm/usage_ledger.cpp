#include "libfabricshm/shm/usage_ledger.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <climits>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/os/futex.hpp"

namespace fabricshm {

namespace {

// Relaxed wherever nothing else is said: slots and sum are written with the lock held, which orders
// them; a reader without it gets figures of which each stands for itself.
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::uint64_t kBytesCap = std::uint64_t{1} << 62;

// Bits of the lock's word: pid, then the start time's low bits, then a hash of the namespace. Cut
// short to fit one word that is exchanged whole. 2^30 ticks of the start time are 124 days: a pid
// that is used again exactly so much later would be taken for the holder that died.
constexpr int kPidBits = 22;  // the kernel's limit
constexpr int kStartBits = 30;
constexpr int kSpaceBits = 12;
static_assert(kPidBits + kStartBits + kSpaceBits == 64);

constexpr std::uint64_t low(std::uint64_t value, int bits) noexcept {
    return value & ((std::uint64_t{1} << bits) - 1);
}

std::uint64_t space_hash(std::uint64_t space) noexcept {
    return (space * 0x9e3779b97f4a7c15) >> (64 - kSpaceBits);
}

void pause_for(std::chrono::nanoseconds length) noexcept {
    timespec left{0, static_cast<long>(length.count())};
    ::nanosleep(&left, nullptr);
}

void relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

std::uint64_t capped_sum(std::uint64_t sum, std::uint64_t more) noexcept {
    return std::min(kBytesCap, sum + std::min(more, kBytesCap));
}

}  // namespace

std::uint64_t detail::lock_word(const ProcessIdentity& process) noexcept {
    return low(static_cast<std::uint64_t>(process.pid), kPidBits) |
           low(process.start_time, kStartBits) << kPidBits |
           space_hash(process.pid_namespace) << (kPidBits + kStartBits);
}

// The lock for as long as it lives; ask whether it was got.
class UsageLedger::Hold {
  public:
    explicit Hold(UsageLedger& ledger) noexcept : ledger_(ledger), held_(ledger.lock()) {}
    ~Hold() {
        if (held_) ledger_.unlock();
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    explicit operator bool() const noexcept { return held_; }

  private:
    UsageLedger& ledger_;
    bool held_;
};

UsageLedger::UsageLedger(LedgerFile& file, const ProcessIdentity& self, Duration timeout) noexcept
    : file_(&file), self_(self), word_(detail::lock_word(self)), timeout_(timeout) {}

void UsageLedger::format(LedgerFile& file, std::uint64_t boot) noexcept {
    file.boot = boot;
    file.version = LedgerFile::kVersion;
    file.magic = LedgerFile::kMagic;
}

bool UsageLedger::is_ledger(const LedgerFile& file) noexcept {
    return file.magic == LedgerFile::kMagic && file.version == LedgerFile::kVersion;
}

bool UsageLedger::lock() noexcept {
    const TimePoint begin = Clock::now();
    TimePoint look_at = begin + std::chrono::milliseconds(1);
    for (int tries = 0;; ++tries) {
        std::uint64_t holder = 0;
        // Acquire, against the release of unlock(): what the last holder wrote is seen.
        if (file_->lock.compare_exchange_strong(holder, word_, std::memory_order_acquire,
                                                kRelaxed)) {
            return true;
        }
        // Held for some fifty nanoseconds; longer means that the holder lost its processor, is
        // stopped, or is dead.
        if (tries < 64) {
            relax();
            continue;
        }
        if (tries < 192) {
            ::sched_yield();
            continue;
        }
        const TimePoint now = Clock::now();
        if (now >= look_at) {
            if (steal_from_dead(holder)) return true;
            look_at = now + std::chrono::milliseconds(1);
        }
        if (now - begin >= timeout_) return false;
        pause_for(std::chrono::microseconds(50));
    }
}

void UsageLedger::unlock() noexcept {
    // Only if it is still ours: a process that was stopped for long may have been declared dead by
    // a daemon that observed another process of our identity end. Release: the next holder sees our
    // stores.
    std::uint64_t mine = word_;
    file_->lock.compare_exchange_strong(mine, 0, std::memory_order_release, kRelaxed);
}

bool UsageLedger::steal_from_dead(std::uint64_t holder) noexcept {
    // From another namespace nothing can be said about it; the daemon will.
    const int space_at = kPidBits + kStartBits;
    if (holder == 0 || holder >> space_at != space_hash(self_.pid_namespace)) return false;
    const auto pid = static_cast<pid_t>(low(holder, kPidBits));
    const auto start = process_start_time(pid);
    const bool is_alive =
        start.ok() && low(*start, kStartBits) == low(holder >> kPidBits, kStartBits);
    const bool is_unknown = !start.ok() && start.error().code != Errc::kNotFound;
    if (is_alive || is_unknown) return false;
    // A dead holder can't change the word, and a second thief changes it to its own: exactly one
    // exchange succeeds. Acquire: on x86 and ARM a dead process's stores are as good as released.
    if (!file_->lock.compare_exchange_strong(holder, word_, std::memory_order_acquire, kRelaxed)) {
        return false;
    }
    recount();
    return true;
}

void UsageLedger::recount() noexcept {
    std::uint64_t sum = 0;
    for (const LedgerSlot& slot : file_->slots) {
        // A slot without a pid was being taken or given back: it holds nothing.
        if (slot.pid.load(kRelaxed) != 0) sum = capped_sum(sum, slot.charged.load(kRelaxed));
    }
    file_->total.store(sum, kRelaxed);
    file_->recoveries.fetch_add(1, kRelaxed);
}

void UsageLedger::empty(LedgerSlot& slot) noexcept {
    const std::uint64_t held = slot.charged.load(kRelaxed);
    slot.pid.store(0, kRelaxed);
    FAULT_POINT("vgpu.reclaim.pid");
    const std::uint64_t sum = file_->total.load(kRelaxed);
    file_->total.store(sum - std::min(sum, held), kRelaxed);
}

Result<int> UsageLedger::claim(pid_t host_pid) {
    // No thread of this process can be holding the lock before it has a slot: a word that says so
    // is from before an exec, which left it with another thread's work undone.
    std::uint64_t left = word_;
    if (file_->lock.compare_exchange_strong(left, word_, std::memory_order_acquire, kRelaxed)) {
        recount();
        unlock();
    }
    for (int round = 0; round < 2; ++round) {
        if (round == 1 && reclaim_dead() == 0) break;
        const Hold hold(*this);
        if (!hold) return Error{Errc::kBusy, 0, "lock the usage ledger"};
        LedgerSlot* free_slot = nullptr;
        for (LedgerSlot& slot : file_->slots) {
            const auto pid = slot.pid.load(kRelaxed);
            const bool is_own = pid == static_cast<std::uint64_t>(self_.pid) &&
                                slot.start_time.load(kRelaxed) == self_.start_time &&
                                slot.pid_namespace.load(kRelaxed) == self_.pid_namespace;
            if (is_own) empty(slot);
            if ((is_own || pid == 0) && free_slot == nullptr) free_slot = &slot;
        }
        if (free_slot == nullptr) continue;
        for (Word* word : {&free_slot->charged, &free_slot->pending, &free_slot->denied,
                           &free_slot->launches, &free_slot->waited_ns, &free_slot->denied_bytes,
                           &free_slot->busy_ns, &free_slot->wanted}) {
            word->store(0, kRelaxed);
        }
        free_slot->host_pid.store(static_cast<std::uint64_t>(host_pid), kRelaxed);
        free_slot->start_time.store(self_.start_time, kRelaxed);
        free_slot->pid_namespace.store(self_.pid_namespace, kRelaxed);
        FAULT_POINT("vgpu.claim.filled");
        // Release: a reader that finds the pid without the lock also finds the rest of the
        // identity.
        free_slot->pid.store(static_cast<std::uint64_t>(self_.pid), std::memory_order_release);
        return static_cast<int>(free_slot - file_->slots);
    }
    return Error{Errc::kNoMemory, 0, "find a slot in the usage ledger"};
}

Result<void> UsageLedger::charge(int slot, std::uint64_t bytes, const LimitsPage& limits) {
    FABRIC_TRY_VOID(add(slot, bytes, bytes, limits));
    return {};
}

Result<std::uint64_t> UsageLedger::charge_up_to(int slot, std::uint64_t bytes,
                                                const LimitsPage& limits) {
    return add(slot, 0, bytes, limits);
}

Result<std::uint64_t> UsageLedger::add(int slot, std::uint64_t least, std::uint64_t most,
                                       const LimitsPage& limits) {
    LedgerSlot& own = file_->slots[slot];
    const Hold hold(*this);
    if (!hold) return Error{Errc::kBusy, 0, "lock the usage ledger"};
    FAULT_POINT("vgpu.charge.locked");
    const auto granted = read_limits(limits);
    const std::uint64_t sum = file_->total.load(kRelaxed);
    const std::uint64_t quota = granted ? granted->grant_bytes() : 0;
    const std::uint64_t room = quota - std::min(quota, sum);
    if (least > room) return Error{Errc::kNoMemory, 0, "charge the vGPU's quota"};
    const std::uint64_t bytes = std::min(most, room);
    // An atomic addition: a release() without the lock may be at work on the same word.
    own.charged.fetch_add(bytes, kRelaxed);
    FAULT_POINT("vgpu.charge.slot");
    file_->total.store(sum + bytes, kRelaxed);
    if (sum + bytes > file_->peak.load(kRelaxed)) file_->peak.store(sum + bytes, kRelaxed);
    return bytes;
}

void UsageLedger::refused(int slot, std::uint64_t bytes) noexcept {
    LedgerSlot& own = file_->slots[slot];
    const std::uint64_t counted = std::min(bytes, kMaxDenied);
    // Statistics, each word for itself: a reader between two of them sees one refusal less.
    own.denied.fetch_add(1, kRelaxed);
    own.denied_bytes.fetch_add(counted, kRelaxed);
    file_->denied.fetch_add(1, kRelaxed);
    file_->denied_bytes.fetch_add(counted, kRelaxed);
}

void UsageLedger::release(int slot, std::uint64_t bytes) noexcept {
    LedgerSlot& own = file_->slots[slot];
    {
        const Hold hold(*this);
        own.charged.fetch_sub(bytes, kRelaxed);
        FAULT_POINT("vgpu.release.slot");
        if (!hold) return;
        const std::uint64_t sum = file_->total.load(kRelaxed);
        file_->total.store(sum - std::min(sum, bytes), kRelaxed);
    }
    room_grew();
}

void UsageLedger::want(int slot, std::uint64_t bytes, TimePoint until) noexcept {
    file_->slots[slot].wanted.fetch_add(std::min(bytes, kMaxDenied), kRelaxed);
    const auto until_ns = static_cast<std::uint64_t>(until.time_since_epoch().count());
    std::uint64_t known = file_->awaited_until_ns.load(kRelaxed);
    // Relaxed: the ledger's lock, which the waiter takes with its next try to charge, orders it
    // before whatever is freed after that. A quota grows without the lock: hence the fence, against
    // that of the process that makes it grow. Either the try finds the larger quota, or it finds us
    // waiting.
    while (known < until_ns &&
           !file_->awaited_until_ns.compare_exchange_weak(known, until_ns, kRelaxed)) {
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

void UsageLedger::unwant(int slot, std::uint64_t bytes) noexcept {
    file_->slots[slot].wanted.fetch_sub(std::min(bytes, kMaxDenied), kRelaxed);
}

std::uint32_t UsageLedger::room() const noexcept {
    // Acquire: the try to charge that follows must not be done before.
    return file_->room.load(std::memory_order_acquire);
}

void UsageLedger::await_room(std::uint32_t seen, TimePoint deadline) const noexcept {
    (void)futex_wait(&file_->room, seen, deadline);
}

// After the lock was let go: a process that tried before has said with the lock held that it waits,
// and one that tries later finds the room.
void UsageLedger::room_grew() noexcept {
    const std::uint64_t until_ns = file_->awaited_until_ns.load(kRelaxed);
    if (until_ns == 0) return;
    const auto now_ns = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
    if (now_ns > until_ns) return;
    // Release, against room(): a process that reads the new number finds the room.
    file_->room.fetch_add(1, std::memory_order_release);
    (void)futex_wake(&file_->room, INT_MAX);
}

int UsageLedger::reclaim_dead() {
    int count = 0;
    for (const LedgerUse& use : uses()) {
        if (use.process == self_ || liveness_of(use.process) != Liveness::kDead) continue;
        const auto done = reclaim(use.process);
        count += done.ok() && *done ? 1 : 0;
    }
    return count;
}

Result<bool> UsageLedger::reclaim(const ProcessIdentity& process) {
    // It may have died with the lock in its hands, in a namespace that only the daemon sees into.
    std::uint64_t holder = detail::lock_word(process);
    if (holder != word_ &&
        file_->lock.compare_exchange_strong(holder, word_, std::memory_order_acquire, kRelaxed)) {
        recount();
        unlock();
    }
    bool found = false;
    {
        const Hold hold(*this);
        if (!hold) return Error{Errc::kBusy, 0, "lock the usage ledger"};
        for (LedgerSlot& slot : file_->slots) {
            const bool is_it = slot.pid.load(kRelaxed) == static_cast<std::uint64_t>(process.pid) &&
                               slot.start_time.load(kRelaxed) == process.start_time &&
                               slot.pid_namespace.load(kRelaxed) == process.pid_namespace;
            if (!is_it) continue;
            empty(slot);
            found = true;
        }
    }
    if (found) room_grew();
    return found;
}

Result<std::uint64_t> UsageLedger::settled_total() {
    const Hold hold(*this);
    if (!hold) return Error{Errc::kBusy, 0, "lock the usage ledger"};
    // From the slots, not from the cached sum: a release() that did not get the lock left it high.
    std::uint64_t sum = 0;
    for (const LedgerSlot& slot : file_->slots) {
        if (slot.pid.load(kRelaxed) != 0) sum = capped_sum(sum, slot.charged.load(kRelaxed));
    }
    file_->total.store(sum, kRelaxed);
    return sum;
}

std::uint64_t UsageLedger::total() const noexcept {
    return std::min(kBytesCap, file_->total.load(kRelaxed));
}

std::vector<LedgerUse> UsageLedger::uses() const {
    std::vector<LedgerUse> found;
    for (const LedgerSlot& slot : file_->slots) {
        // Acquire, against the release in claim().
        const std::uint64_t pid = slot.pid.load(std::memory_order_acquire);
        if (pid == 0 || pid >> kPidBits != 0) continue;
        const std::uint64_t reported = slot.host_pid.load(kRelaxed);
        const std::uint64_t host_pid = reported != 0 && reported >> kPidBits == 0 ? reported : pid;
        found.push_back({{static_cast<pid_t>(pid), slot.start_time.load(kRelaxed),
                          slot.pid_namespace.load(kRelaxed)},
                         static_cast<pid_t>(host_pid),
                         slot.charged.load(kRelaxed),
                         slot.denied.load(kRelaxed),
                         slot.denied_bytes.load(kRelaxed),
                         slot.busy_ns.load(kRelaxed),
                         slot.wanted.load(kRelaxed)});
    }
    return found;
}

}  // namespace fabricshm
