// Which of a vGPU's processes holds how much of its GPU's memory: a file that all of them map.
//
//   0      magic, version, slots, boot       written once
//   128    lock                              its holder: 0, or pid, start time and namespace
//   256    total, peak, recoveries, denied,  total: the sum of all slots, kept for speed;
//          denied_bytes, busy_ns,           the rest is since the file was made
//          room, awaited_until_ns           for those that wait for room
//   384    bucket                            of compute time, see vgpu/share.hpp
//   512    256 slots of 128 bytes            one for each process
//
// The slots are the truth and `total` follows from them: a process that finds that the holder of
// the lock died adds them up again. So a process may be killed between any two stores, and the
// ledger is right after the next one took the lock. Tenants write here; the daemon treats it as
// input.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/process.hpp"
#include "libfabricshm/shm/limits_page.hpp"

namespace fabricshm {

using Word = std::atomic<std::uint64_t>;

struct LedgerSlot {
    Word pid;  // 0: free. Written last when a slot is taken, first when it is given back
    Word start_time;
    Word pid_namespace;
    Word charged;  // bytes, driver calls under way included
    Word pending;  // of these: bytes of driver calls under way
    Word denied;   // allocations refused
    Word launches;
    Word waited_ns;     // in launches, for compute time
    Word denied_bytes;  // what the refused allocations asked for, see refused()
    Word busy_ns;       // of the GPU's time, as NVML measured it; see vgpu/throttle.hpp
    Word host_pid;      // as the daemon counts, and NVML; 0: the same as `pid`, as far as known
    Word wanted;        // bytes that threads wait for now
    Word spare[4];
};
static_assert(sizeof(LedgerSlot) == 128);

/// Tokens of compute time, shared by the processes of a vGPU. See vgpu/share.hpp.
struct ShareBucket {
    Word tokens;       // two's complement: may be overdrawn by one launch
    Word rate;         // units of work per millisecond
    Word refilled_ns;  // CLOCK_MONOTONIC
    Word window_ns;    // end of the window that is being measured
    Word spent;        // units of work in this window
    Word held_up;      // launches that waited in this window
    Word sampled_us;   // the newest sample of NVML that was used
    Word measured_ns;  // when that was; 0: nothing was ever measured
    Word counted;      // 1: `spent` has all work since then, 0: some launches went uncounted
    Word spare[7];
};
static_assert(sizeof(ShareBucket) == 128);

struct LedgerFile {
    static constexpr std::uint32_t kMagic = 0x47454c55;  // "ULEG"
    static constexpr std::uint32_t kVersion = 1;
    static constexpr int kSlots = 256;

    std::uint32_t magic;
    std::uint32_t version;
    std::uint64_t boot;  // the host's pid namespace and boot when it was made
    alignas(128) Word lock;
    alignas(128) Word total;
    Word peak;
    Word recoveries;
    Word denied;
    Word denied_bytes;
    Word busy_ns;
    std::atomic<std::uint32_t> room;  // rises when there may be more of it; waiters sleep here
    std::uint32_t unused;
    Word awaited_until_ns;  // CLOCK_MONOTONIC; until then a waiter may be asleep, later none is
    alignas(128) ShareBucket bucket;
    alignas(128) LedgerSlot slots[kSlots];
};
inline constexpr Bytes kMaxDenied = 1024 * kGiB;  // more than any GPU has
inline constexpr Bytes kLedgerBytes = round_up(sizeof(LedgerFile), 4096);

/// One process's use, as read by another process.
struct LedgerUse {
    ProcessIdentity process;
    pid_t host_pid = 0;  // the number that the daemon and NVML know it by; of a process in another
                         // pid namespace not `process.pid`
    std::uint64_t charged = 0;
    std::uint64_t denied = 0;
    std::uint64_t denied_bytes = 0;
    std::uint64_t busy_ns = 0;
    std::uint64_t wanted = 0;  // bytes that it waits for now; one wait counts as kMaxDenied at most
};

/// The operations on a mapped ledger. Any number of threads and processes at the same time. Every
/// wait is bounded: kBusy after `timeout`, when a process that is alive (or stopped) keeps the
/// lock.
class UsageLedger {
  public:
    /// `file` stays mapped for the life of the object. `self` is this process.
    UsageLedger(LedgerFile& file, const ProcessIdentity& self,
                Duration timeout = std::chrono::seconds(1)) noexcept;

    static void format(LedgerFile& file, std::uint64_t boot) noexcept;
    static bool is_ledger(const LedgerFile& file) noexcept;

    /// This process's slot; one that it left behind (exec keeps pid and start time, and frees what
    /// the GPU held) is emptied. `host_pid`: what the daemon said its number is, 0: nothing.
    /// kNoMemory: all slots belong to live processes.
    Result<int> claim(pid_t host_pid = 0);

    /// Adds `bytes` to the slot, unless the total would pass what `limits` grants; it is asked
    /// with the lock held, so that a limit announced before the lock was taken counts.
    /// kNoMemory: refused, and counted nowhere: the caller may find room and ask again. kBusy: see
    /// above.
    Result<void> charge(int slot, std::uint64_t bytes, const LimitsPage& limits);

    /// Adds as much of `bytes` as there is room for, and returns how much that was: for what is
    /// taken already, whatever the quota says. kBusy: see above, and nothing was added.
    Result<std::uint64_t> charge_up_to(int slot, std::uint64_t bytes, const LimitsPage& limits);

    /// Counts an allocation of `bytes` that the program was refused for good. One larger than
    /// kMaxDenied counts as that: programs ask for absurd sizes to learn how much there is, and no
    /// quota could ever be made to fit them. Without the lock.
    void refused(int slot, std::uint64_t bytes) noexcept;

    /// Waiting for room. A thread says with want() what it waits for and until when, and then,
    /// again and again: reads room(), tries to charge, and sleeps with await_room() on what it has
    /// read. Whatever makes room after that try raises the word, so no sleep misses it. unwant()
    /// ends it. A waiter that dies leaves nothing but its deadline: until then some wakes are for
    /// no waiter.
    void want(int slot, std::uint64_t bytes, TimePoint until) noexcept;
    void unwant(int slot, std::uint64_t bytes) noexcept;
    std::uint32_t room() const noexcept;
    /// Returns when there may be room, at the deadline, or for no reason.
    void await_room(std::uint32_t seen, TimePoint deadline) const noexcept;
    /// Wakes them: for the daemon, which makes room by a larger quota, after a sequentially
    /// consistent fence.
    void room_grew() noexcept;

    /// Takes `bytes` off again. Never refuses: after kBusy's deadline the lock is left alone and
    /// the slot is corrected; the total follows with the next recovery, until then too high.
    void release(int slot, std::uint64_t bytes) noexcept;

    /// Frees the slots of processes that died. Returns how many. Other pid namespaces are left to
    /// the daemon. Costs a read of /proc for each slot in use.
    int reclaim_dead();

    /// Frees the slot of a process that is known to be dead.
    Result<bool> reclaim(const ProcessIdentity& process);

    /// The sum over all slots, read with the lock held: no charge under limits of before is on its
    /// way any more. Capped at 2^62, since tenants write the words.
    Result<std::uint64_t> settled_total();

    /// The same without the lock: may be a moment old.
    std::uint64_t total() const noexcept;
    std::vector<LedgerUse> uses() const;

    LedgerFile& file() const noexcept { return *file_; }

  private:
    class Hold;
    bool lock() noexcept;
    void unlock() noexcept;
    Result<std::uint64_t> add(int slot, std::uint64_t least, std::uint64_t most,
                              const LimitsPage& limits);
    bool steal_from_dead(std::uint64_t holder) noexcept;
    void recount() noexcept;
    void empty(LedgerSlot& slot) noexcept;

    LedgerFile* file_;
    ProcessIdentity self_;
    std::uint64_t word_;  // what the lock holds while it is ours
    Duration timeout_;
};

namespace detail {
/// The word that the lock of a ledger holds while a thread of `process` has it.
std::uint64_t lock_word(const ProcessIdentity& process) noexcept;
}  // namespace detail

}  // namespace fabricshm
