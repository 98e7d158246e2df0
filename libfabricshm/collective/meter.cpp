#include "libfabricshm/collective/meter.hpp"

#include <algorithm>
#include <thread>

namespace fabricshm {

namespace {

// A small operation that took longer than this without waiting was put to sleep by the scheduler:
// it must not count sixteen times.
constexpr std::int64_t kSmallMostNs = 100'000;

std::int64_t nanoseconds(Duration length) noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(length).count();
}

template <typename Sum>
void add(std::atomic<Sum>& sum, Sum value) noexcept {
    // One writer: no other addition can come in between.
    sum.store(sum.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

}  // namespace

Meter::Timing Meter::begin_timed(Bytes bytes) noexcept {
    Timing timing;
    timing.weight = 1;
    if (bytes < kAlwaysFrom) {
        timing.weight = drawn_;
        // Training repeats itself: every sixteenth operation might always be the same one of a
        // step. So the distance is drawn, 1 to 31 (xorshift).
        random_ ^= random_ << 13;
        random_ ^= random_ >> 17;
        random_ ^= random_ << 5;
        drawn_ = 1 + random_ % 31;
        left_ = drawn_;
    }
    timing.waited_ns = wait_ns_.load(std::memory_order_relaxed);
    timing.start = Clock::now();
    return timing;
}

void Meter::end_timed(const Timing& timing, const EndedCall& call) noexcept {
    // Relaxed: see set_latencies(), and begin() for why that is enough.
    LatencyCounters* latencies = latencies_.load(std::memory_order_relaxed);
    if (latencies != nullptr && !call.is_ok) latencies->count_failure(call.kind);
    if (timing.weight == 0) return;
    const std::int64_t took = nanoseconds(Clock::now() - timing.start);
    if (latencies != nullptr && call.is_ok) {
        latencies->count(call.kind, call.bytes, took, timing.weight);
    }
    const std::int64_t waited = wait_ns_.load(std::memory_order_relaxed) - timing.waited_ns;
    std::int64_t spent = took - waited;
    if (timing.weight > 1) spent = std::min(spent, kSmallMostNs);
    if (spent > 0) add(comm_ns_, spent * timing.weight);
}

Meter::Timing Meter::begin_traced(OperationTrace& trace, Bytes bytes) noexcept {
    const bool timed = bytes >= kAlwaysFrom || --left_ == 0;
    Timing timing = timed ? begin_timed(bytes) : Timing{};
    longest_.begin();
    const std::uint64_t serial = trace.serial();
    if (serial != traced_serial_) traced_end_ns_ = 0;  // by another clock
    traced_serial_ = serial;
    // Not before the last one's end, on whichever processor that was read.
    timing.traced_ns = std::max(trace.begin(), traced_end_ns_);
    return timing;
}

// One of two sees the other: either this one is seen writing by stop_trace(), which then waits, or
// it sees that there is no trace. For that all four accesses have to be in one order
// (sequentially consistent): each side stores first and loads then.
void Meter::trace(const Timing& timing, TraceRecord record) noexcept {
    is_writing_.store(true, std::memory_order_seq_cst);
    OperationTrace* trace = trace_.load(std::memory_order_seq_cst);
    if (trace != nullptr && trace->serial() == traced_serial_) {
        record.begin_ns = timing.traced_ns;
        record.arrive_ns = longest_.end_ns();
        if (trace->write(record)) {
            traced_end_ns_ = record.end_ns;
        } else {
            // Relaxed: it is over, which a later operation may find out as well.
            trace_.store(nullptr, std::memory_order_relaxed);
        }
    }
    // Release: what was written is there before stop_trace() returns.
    is_writing_.store(false, std::memory_order_release);
}

bool Meter::stop_trace() noexcept {
    // A record takes some 20 ns. Its thread may be kept from its processor meanwhile, for some
    // turns of the scheduler, or be stopped by a debugger.
    constexpr auto kMaxWait = std::chrono::milliseconds(200);
    trace_.store(nullptr, std::memory_order_seq_cst);
    if (!is_writing_.load(std::memory_order_seq_cst)) return true;
    const TimePoint until = Clock::now() + kMaxWait;
    while (is_writing_.load(std::memory_order_acquire)) {
        if (Clock::now() >= until) return false;
        std::this_thread::yield();
    }
    return true;
}

// Worked out from what was called, not counted at the loads: what rank r reads of, or stores into,
// the memory of each other rank.
void Meter::count(const MeteredCall& call) noexcept {
    const auto world = static_cast<Bytes>(call.world);
    const bool at_root = call.rank == call.root;
    switch (row_of(call.kind).flow) {
        case Flow::kAll:
            // Reduced for all in place, each rank reads its share of every input and stores it into
            // every output.
            if (!reduces_for_all(call.kind) || call.in_pieces) return add(each_, call.bytes);
            return add(each_, 2 * call.bytes / world);
        case Flow::kToRoot:
            if (at_root) add(each_, call.bytes);
            return;
        case Flow::kUp:
            // In place as in an allreduce; else each rank reads those below it.
            if (!call.in_pieces) return add(each_, 2 * call.bytes / world);
            for (int peer = 0; peer < call.rank; ++peer) moved(peer, call.bytes);
            return;
        case Flow::kFromRoot:
            if (!at_root) moved(call.root, call.bytes);
            return;
        case Flow::kPeer:
            return;  // counted where they move
    }
}

void Meter::moved(int peer, Bytes bytes) noexcept {
    if (peer < 0 || peer >= kPeersMax) return;
    to_[static_cast<std::size_t>(peer)].fetch_add(bytes, std::memory_order_relaxed);
}

void Meter::waited(Duration length) noexcept {
    wait_ns_.fetch_add(nanoseconds(length), std::memory_order_relaxed);
    const OperationTrace* trace = trace_.load(std::memory_order_relaxed);
    if (trace != nullptr) longest_.note(trace->now_ns(), nanoseconds(length));
}

MeterSums Meter::sums() const noexcept {
    MeterSums sums;
    sums.wait_ns = wait_ns_.load(std::memory_order_relaxed);
    sums.comm_ns = comm_ns_.load(std::memory_order_relaxed);
    const std::uint64_t each = each_.load(std::memory_order_relaxed);
    for (std::size_t peer = 0; peer < sums.bytes_to.size(); ++peer) {
        sums.bytes_to[peer] = each + to_[peer].load(std::memory_order_relaxed);
    }
    return sums;
}

}  // namespace fabricshm
