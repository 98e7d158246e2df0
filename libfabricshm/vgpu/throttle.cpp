#include "libfabricshm/vgpu/throttle.hpp"

#include <time.h>

#include <algorithm>
#include <atomic>

#include "libfabricshm/vgpu/nvml.hpp"
#include "libfabricshm/vgpu/share.hpp"

namespace fabricshm::cuda {

namespace {

// A process that stops with the bucket far overdrawn, or corrupts its words, must not stop the
// others. Ten windows are enough to find a rate in.
constexpr std::int64_t kWaitMostNs = 2'000'000'000;
// NVML keeps samples of some seconds: a process that launches after a longer pause learns nothing
// of before.
constexpr std::int64_t kAccountMostNs = 10'000'000'000;
constexpr auto kRelaxed = std::memory_order_relaxed;  // of words that each stand for themselves

std::int64_t now_ns() noexcept {
    return Clock::now().time_since_epoch().count();
}

void nap(std::int64_t length_ns) noexcept {
    const timespec length{0, static_cast<long>(length_ns)};
    ::nanosleep(&length, nullptr);
}

void say_once_that_nobody_tells(const Vgpu& vgpu) {
    static std::atomic<bool> said{false};
    if (said.exchange(true, kRelaxed)) return;
    say("%s: no compute share: NVML does not report which process is busy", vgpu.name().c_str());
}

std::uint64_t part_of(double share, std::int64_t length_ns) noexcept {
    return static_cast<std::uint64_t>(share * static_cast<double>(length_ns));
}

// Every process's time goes to its own slot, whichever of them measured. A process that took over a
// slot since gets what was another's for one window: these are statistics.
void account(Vgpu& vgpu, const BusyShares& busy, std::int64_t length_ns) {
    LedgerFile& file = vgpu.ledger().file();
    file.busy_ns.fetch_add(part_of(busy.all, length_ns), kRelaxed);
    for (LedgerSlot& slot : file.slots) {
        const std::uint64_t own = slot.pid.load(kRelaxed);
        if (own == 0) continue;
        const std::uint64_t reported = slot.host_pid.load(kRelaxed);
        const std::uint64_t pid = reported != 0 ? reported : own;
        const auto found = busy.processes.find(static_cast<unsigned int>(pid));
        if (found == busy.processes.end()) continue;
        slot.busy_ns.fetch_add(part_of(found->second, length_ns), kRelaxed);
    }
}

// Measures when a window is over, and sets the rate where launches are held back. On the thread
// that launches: once in a window for all processes together, so that no program gets a thread it
// did not start.
void control(Vgpu& vgpu, std::int64_t asked_at, bool is_held) {
    ShareBucket& bucket = vgpu.ledger().file().bucket;
    if (!take_window(bucket, asked_at, is_held ? kWindowNs : kFreeWindowNs)) return;
    // In the ledger, since another process may have measured the last window: no sample counts
    // twice.
    std::uint64_t since_us = bucket.sampled_us.load(kRelaxed);
    const auto busy = busy_shares(vgpu, since_us);
    bucket.sampled_us.store(since_us, kRelaxed);
    if (!busy) {
        if (is_held) say_once_that_nobody_tells(vgpu);
        return;
    }
    // Read again: this thread may have lost its processor since it took the window.
    const auto now = static_cast<std::uint64_t>(now_ns());
    // Relaxed as all of these: take_window() let one thread through, and a window is far longer
    // than what follows takes. Two that are here at once nevertheless corrupt one window's measure.
    const std::uint64_t before = bucket.measured_ns.exchange(now, kRelaxed);
    const bool was_counted = bucket.counted.exchange(is_held ? 1 : 0, kRelaxed) == 1;
    // Subtracted without a sign: the word may be corrupt, and a signed difference overflow.
    const std::int64_t length = std::min(static_cast<std::int64_t>(now - before), kAccountMostNs);
    // The first sample only begins a window.
    if (before == 0 || length <= 0) return;
    account(vgpu, *busy, length);
    if (!is_held) return;
    if (was_counted) {
        end_window(bucket, static_cast<double>(vgpu.share_percent()) / 100.0, busy->all, length);
    } else {
        // Part of what kept the GPU busy went uncounted: no measure of what a unit of work costs.
        bucket.spent.store(0, kRelaxed);
        bucket.held_up.store(0, kRelaxed);
    }
}

}  // namespace

void throttle(Vgpu& vgpu, std::uint64_t work) {
    ShareBucket& bucket = vgpu.ledger().file().bucket;
    const std::int64_t begin = now_ns();
    std::int64_t now = begin;
    vgpu.slot().launches.fetch_add(1, kRelaxed);
    for (;;) {
        // Also while it waits: else a rate that is too small would never be found out.
        control(vgpu, now, true);
        const auto wait = try_spend(bucket, work, now);
        if (!wait) break;
        // Whatever the words say, no launch waits for longer.
        if (now - begin >= kWaitMostNs) {
            spend_anyway(bucket, work);
            break;
        }
        nap(*wait);
        now = now_ns();
    }
    if (now != begin) {
        vgpu.slot().waited_ns.fetch_add(static_cast<std::uint64_t>(now - begin), kRelaxed);
    }
}

void unthrottle(Vgpu& vgpu, std::uint64_t work) noexcept {
    unspend(vgpu.ledger().file().bucket, work);
}

void account(Vgpu& vgpu) {
    control(vgpu, now_ns(), false);
}

}  // namespace fabricshm::cuda
