// Meter: where the time of a group's operations goes, and between which ranks its bytes. For
// telemetry; nothing here decides anything.
//
// An operation of 8 bytes takes less than two readings of the clock cost, so:
//   waiting        is timed from the moment at which a waiter has spun in vain, some microseconds
//   communication  of operations from kAlwaysFrom on is timed each time; of smaller ones, one in
//                  about sixteen is, at random, and counts for all
//   latencies      are of the operations that are timed, waits included (latency_counters.hpp)
//   a trace        has the times of each operation while it is on (operation_trace.hpp)

#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/call.hpp"
#include "libfabricshm/collective/latency_counters.hpp"
#include "libfabricshm/collective/operation_trace.hpp"
#include "libfabricshm/shm/telemetry_page.hpp"

namespace fabricshm {

/// Sums since the group was joined.
struct MeterSums {
    std::int64_t wait_ns = 0;
    std::int64_t comm_ns = 0;
    std::array<std::uint64_t, kPeersMax> bytes_to{};  // by rank
};

/// An operation that has ended.
struct EndedCall {
    Kind kind = Kind::kAllreduce;
    Bytes bytes = 0;  // of the largest part
    bool is_ok = true;
};

/// What an operation is to its meter.
struct MeteredCall {
    Kind kind = Kind::kAllreduce;
    Bytes bytes = 0;         // of the largest part
    bool in_pieces = false;  // through slots or lines, where every rank reads every post whole
    int rank = 0;
    int world = 1;
    int root = 0;
};

/// Written by the thread that runs the group's operations, and by message threads where it says so;
/// read by any thread. A reader may see a wait and not yet the bytes that came after it.
class Meter {
  public:
    /// From here on the clock is a small part of the operation.
    static constexpr Bytes kAlwaysFrom = 16 * kKiB;

    /// One operation under way: not timed if `weight` is 0.
    struct Timing {
        std::int64_t weight = 0;
        TimePoint start;
        std::int64_t waited_ns = 0;
        std::int64_t traced_ns = 0;  // when it began, by the trace's clock; 0: it is not traced
    };

    /// Before an operation whose largest part has so many bytes.
    Timing begin(Bytes bytes) noexcept {
        // Relaxed: the trace is there for as long as the group is; see Telemetry.
        OperationTrace* trace = trace_.load(std::memory_order_relaxed);
        if (__builtin_expect(trace != nullptr, false)) return begin_traced(*trace, bytes);
        if (bytes < kAlwaysFrom && --left_ != 0) return {};
        return begin_timed(bytes);
    }
    /// After it. What it did not wait counts as communication.
    void end(const Timing& timing, const EndedCall& call) noexcept {
        if (timing.weight != 0 || !call.is_ok) end_timed(timing, call);
    }
    /// The bytes of an operation that went well.
    void count(const MeteredCall& call) noexcept;

    /// Operations that begin from now on are written there. Any thread; it lives on for as long as
    /// the meter, since an operation may read its clock.
    void set_trace(OperationTrace& trace) noexcept {
        // Release: a thread that sees the trace sees what was made ready in it. (begin() needs no
        // acquire: all it does with it depends on the pointer.)
        trace_.store(&trace, std::memory_order_release);
    }
    /// From now on nothing is written. True once no operation is writing any more, so that the
    /// trace may begin again with another ring; false when one was kept from its processor in the
    /// middle of it for too long. Any thread.
    bool stop_trace() noexcept;
    /// From now on the latencies of operations are counted there; it outlives every operation. Any
    /// thread.
    void set_latencies(LatencyCounters* latencies) noexcept {
        // Release, as above.
        latencies_.store(latencies, std::memory_order_release);
    }
    /// After end(), of an operation that was traced: `record` lacks its times. Nothing is written
    /// of one that began under an earlier trace: its beginning is none of this one's.
    void trace(const Timing& timing, TraceRecord record) noexcept;

    /// A message; any thread.
    void moved(int peer, Bytes bytes) noexcept;
    /// A wait that took longer than spinning; any thread.
    void waited(Duration length) noexcept;

    MeterSums sums() const noexcept;

  private:
    Timing begin_timed(Bytes bytes) noexcept;
    Timing begin_traced(OperationTrace& trace, Bytes bytes) noexcept;
    void end_timed(const Timing& timing, const EndedCall& call) noexcept;

    // Of the thread that runs operations.
    std::uint32_t left_ = 1;   // small operations until one is timed
    std::uint32_t drawn_ = 1;  // how many the next timed one stands for
    std::uint32_t random_ = 1;

    std::uint64_t traced_serial_ = 0;  // of the trace that the operation began under
    std::int64_t traced_end_ns_ = 0;   // of the last operation that was written to it

    std::atomic<OperationTrace*> trace_{nullptr};
    std::atomic<bool> is_writing_{false};
    std::atomic<LatencyCounters*> latencies_{nullptr};
    LongestWait longest_;  // of the operation that is traced now

    // Relaxed throughout: each sum stands for itself. Those that one thread adds to are loaded and
    // stored, which is cheaper than an addition that is atomic.
    std::atomic<std::int64_t> wait_ns_{0};
    std::atomic<std::int64_t> comm_ns_{0};
    std::atomic<std::uint64_t> each_{0};  // bytes to every peer alike, the usual case
    std::array<std::atomic<std::uint64_t>, kPeersMax> to_{};
};

/// Times one wait, from begin() to its own end. Costs nothing when it never begins.
class WaitTimer {
  public:
    explicit WaitTimer(Meter* meter) noexcept : meter_(meter) {}
    ~WaitTimer() {
        if (begun_) meter_->waited(Clock::now() - start_);
    }
    WaitTimer(const WaitTimer&) = delete;
    WaitTimer& operator=(const WaitTimer&) = delete;

    /// Again is nothing.
    void begin() noexcept {
        if (begun_ || meter_ == nullptr) return;
        begun_ = true;
        start_ = Clock::now();
    }

  private:
    Meter* meter_;
    bool begun_ = false;
    TimePoint start_;
};

}  // namespace fabricshm
