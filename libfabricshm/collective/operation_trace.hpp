// OperationTrace: where the operations of a session are written while `fabricctl trace` is on.
// docs/tracing.md.

#pragma once

#include <atomic>
#include <cstdint>

#include "libfabricshm/base/tick_clock.hpp"
#include "libfabricshm/shm/trace_ring.hpp"

namespace fabricshm {

/// Of one session. The ring's memory and this outlive every operation of the session's groups: a
/// later trace has the same addresses. Each trace has a serial, by which an operation that began
/// under an earlier one is known when it ends.
class OperationTrace {
  public:
    /// While no meter has this: operations that begin from now on and end by `until_ns` go into
    /// `ring`.
    void begin_trace(std::byte* ring, std::int64_t until_ns, const TickRate& rate) noexcept {
        clock_.set(rate);
        // Relaxed, here and below: Meter::set_trace() releases them.
        until_ns_.store(until_ns, std::memory_order_relaxed);
        ring_.store(ring, std::memory_order_relaxed);
        // Release: an operation that sees the new serial reads the new clock. One that reads a
        // clock of both rates has the old serial, and is not written.
        serial_.store(serial_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }

    /// Of the trace that is on, or was; 0 before the first one. An operation takes it before its
    /// begin().
    std::uint64_t serial() const noexcept { return serial_.load(std::memory_order_acquire); }

    std::int64_t now_ns() const noexcept { return clock_.now_ns(); }

    /// An operation begins: its time, never 0.
    std::int64_t begin() const noexcept {
        const std::int64_t now = clock_.now_ns();
        return now > 0 ? now : 1;
    }

    /// It has ended: sets that, and the arrival if it is not between begin and end. False once the
    /// trace is over: nothing was written.
    bool write(TraceRecord& record) const noexcept {
        const std::int64_t now = clock_.now_ns();
        if (now > until_ns_.load(std::memory_order_relaxed)) return false;
        // The counter is read wherever the processor likes, some instructions early or late.
        record.end_ns = now > record.begin_ns ? now : record.begin_ns;
        const bool between =
            record.arrive_ns >= record.begin_ns && record.arrive_ns <= record.end_ns;
        if (!between) record.arrive_ns = record.begin_ns;
        write_trace(ring_.load(std::memory_order_relaxed), record);
        return true;
    }

  private:
    TickClock clock_;
    std::atomic<std::int64_t> until_ns_{0};
    std::atomic<std::byte*> ring_{nullptr};
    std::atomic<std::uint64_t> serial_{0};
};

/// When the longest wait of an operation ended. Waits that follow each other at once are one: a
/// rank that waits for all waits for them one after the other.
class LongestWait {
  public:
    /// By the thread that runs the operation; waits of other threads (of messages) do not count.
    void begin() noexcept {
        // Relaxed throughout: only that thread reads what it wrote; others compare the address.
        thread_.store(this_thread(), std::memory_order_relaxed);
        longest_ns_ = chain_ns_ = chain_end_ns_ = end_ns_ = 0;
    }

    /// Any thread: a wait of `length_ns` ended at `now_ns`.
    void note(std::int64_t now_ns, std::int64_t length_ns) noexcept {
        constexpr std::int64_t kAtOnceNs = 2'000;
        if (thread_.load(std::memory_order_relaxed) != this_thread()) return;
        const bool follows = now_ns - length_ns - chain_end_ns_ < kAtOnceNs;
        chain_ns_ = follows ? chain_ns_ + length_ns : length_ns;
        chain_end_ns_ = now_ns;
        if (chain_ns_ < longest_ns_) return;
        longest_ns_ = chain_ns_;
        end_ns_ = now_ns;
    }

    /// 0: there was none.
    std::int64_t end_ns() const noexcept { return end_ns_; }

  private:
    // An address that each thread has of its own.
    static const void* this_thread() noexcept {
        static thread_local char mark = 0;
        return &mark;
    }

    std::atomic<const void*> thread_{nullptr};
    std::int64_t longest_ns_ = 0;
    std::int64_t chain_ns_ = 0;
    std::int64_t chain_end_ns_ = 0;
    std::int64_t end_ns_ = 0;
};

}  // namespace fabricshm
