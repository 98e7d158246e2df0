#include "libfabricshm/collective/meter.hpp"

#include <doctest/doctest.h>

#include <iterator>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "libfabricshm/collective/peer_read.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;

namespace {

MeteredCall call(Kind kind, Bytes bytes, bool in_pieces, int rank, int root = 0) {
    return {kind, bytes, in_pieces, rank, 4, root};
}

struct OwnRing {
    OwnRing() { format_trace(bytes()); }
    std::byte* bytes() { return reinterpret_cast<std::byte*>(ring.get()); }
    std::vector<TraceRecord> read() {
        std::vector<TraceRecord> records;
        TraceReader reader(bytes());
        reader.read(records);
        CHECK(reader.senseless() == 0);
        return records;
    }
    std::unique_ptr<TraceRing> ring = std::make_unique<TraceRing>();
};

TraceRecord record_of(std::uint64_t epoch) {
    TraceRecord record{};
    record.group_id = 3;
    record.world = 2;
    record.epoch = epoch;
    return record;
}

}  // namespace

TEST_SUITE("collective.meter") {
    TEST_CASE("bytes between ranks are those that the kind of operation moves") {
        Meter meter;
        meter.count(call(Kind::kAllreduce, 1000, true, 0));
        meter.count(call(Kind::kAllreduce, 1000, false, 0));
        meter.count(call(Kind::kAllGather, 10, true, 0));
        meter.count(call(Kind::kReduce, 7, true, 0, 0));
        meter.count(call(Kind::kReduce, 7, true, 0, 1));
        meter.count(call(Kind::kBroadcast, 3, true, 0, 2));
        meter.count(call(Kind::kBroadcast, 3, true, 0, 0));
        meter.count(call(Kind::kBarrier, 0, true, 0));
        meter.moved(3, 100);
        meter.moved(-1, 100);
        meter.moved(kPeersMax, 100);
        const auto sums = meter.sums();
        CHECK(sums.bytes_to[1] == 1000 + 500 + 10 + 7);
        CHECK(sums.bytes_to[2] == sums.bytes_to[1] + 3);
        CHECK(sums.bytes_to[3] == sums.bytes_to[1] + 100);
    }

    TEST_CASE("every large operation is timed, less what it waited") {
        Meter meter;
        for (int i = 0; i < 10; ++i) {
            const auto timing = meter.begin(Meter::kAlwaysFrom);
            CHECK(timing.weight == 1);
            meter.end(timing, {});
        }
        const std::int64_t before = meter.sums().comm_ns;
        CHECK(before > 0);
        // An operation that only waits communicates nothing.
        const auto timing = meter.begin(Meter::kAlwaysFrom);
        meter.waited(1h);
        meter.end(timing, {});
        CHECK(meter.sums().comm_ns == before);
        CHECK(meter.sums().wait_ns == 3'600'000'000'000);
    }

    TEST_CASE("of small operations one in about sixteen is timed, at uneven distances, for all") {
        Meter meter;
        int timed = 0;
        std::int64_t stood_for = 0;
        std::int64_t last = -1, distances = 0;
        constexpr int kOperations = 16'000;
        for (int i = 0; i < kOperations; ++i) {
            const auto timing = meter.begin(8);
            if (timing.weight != 0) {
                ++timed;
                stood_for += timing.weight;
                distances += last >= 0 && i - last != 16 ? 1 : 0;
                last = i;
            }
            meter.end(timing, {});
        }
        CHECK(timed > 800);
        CHECK(timed < 1250);
        CHECK(stood_for > kOperations - 32);
        CHECK(stood_for <= kOperations);
        CHECK(distances > timed / 2);
    }

    TEST_CASE("latencies have all operations, of small ones about as many as there were") {
        const auto latencies = std::make_unique<LatencyCounters>();
        Meter meter;
        meter.set_latencies(latencies.get());
        for (int i = 0; i < 16'000; ++i) meter.end(meter.begin(8), {Kind::kAllreduce, 8, true});
        for (int i = 0; i < 10; ++i) {
            const auto timing = meter.begin(100 * kKiB);
            meter.waited(1h);  // in the latency by the clock alone
            meter.end(timing, {Kind::kBroadcast, 100 * kKiB, true});
        }
        meter.end(meter.begin(8), {Kind::kScan, 8, false});
        meter.end(meter.begin(1 * kMiB), {Kind::kScan, 1 * kMiB, false});
        const auto image = std::make_unique<LatencyImage>();
        latencies->copy_to(*image);
        const int small = static_cast<int>(Kind::kAllreduce) * 4;
        const int large = static_cast<int>(Kind::kBroadcast) * 4 + 2;
        CHECK(image->used == (1ULL << small | 1ULL << large));
        const auto all = [&](int row) {
            return std::accumulate(std::begin(image->rows[row].counts),
                                   std::end(image->rows[row].counts), std::uint64_t{0});
        };
        CHECK(all(small) > 16'000 - 32);
        CHECK(all(small) <= 16'000);
        CHECK(image->rows[small].sum_ns > 0);
        CHECK(all(large) == 10);
        CHECK(image->failures[static_cast<int>(Kind::kScan)] == 2);
    }

    TEST_CASE("a wait that never begins is not timed") {
        Meter meter;
        { const WaitTimer timer(&meter); }
        CHECK(meter.sums().wait_ns == 0);
        {
            WaitTimer timer(&meter);
            timer.begin();
            timer.begin();
        }
        CHECK(meter.sums().wait_ns > 0);
        WaitTimer nowhere(nullptr);
        nowhere.begin();
    }

    TEST_CASE("a timed read has bytes, a time and a latency, and leaves the memory as it was") {
        alignas(4096) static std::byte memory[32 * 1024];
        for (std::size_t i = 0; i < sizeof memory; ++i) memory[i] = std::byte(i % 251);
        const PeerRead read = time_read(memory, sizeof memory);
#if defined(__x86_64__)
        CHECK(read.bytes == 28 * 1024);
        CHECK(read.ns > 0);
        CHECK(read.latency_ns > 0);
#endif
        int changed = 0;
        for (std::size_t i = 0; i < sizeof memory; ++i) changed += memory[i] != std::byte(i % 251);
        CHECK(changed == 0);
    }

    TEST_CASE("an operation that began under one trace is not written to the next one") {
        OwnRing first, second;
        OperationTrace trace;
        Meter meter;
        trace.begin_trace(first.bytes(), INT64_MAX, {});
        meter.set_trace(trace);
        const auto old = meter.begin(8);
        REQUIRE(old.traced_ns != 0);
        REQUIRE(meter.stop_trace());
        trace.begin_trace(second.bytes(), INT64_MAX, {});
        meter.set_trace(trace);
        meter.trace(old, record_of(1));
        CHECK(first.read().empty());
        CHECK(second.read().empty());
        const auto next = meter.begin(8);
        meter.trace(next, record_of(2));
        REQUIRE(second.read().size() == 1);
        CHECK(second.read()[0].epoch == 2);
    }

    TEST_CASE("operations of a group follow each other, by the clock of their own trace") {
        OwnRing first, second;
        OperationTrace trace;
        Meter meter;
        trace.begin_trace(first.bytes(), INT64_MAX, {});
        meter.set_trace(trace);
        meter.trace(meter.begin(8), record_of(1));
        // Its clock began at 1 ns just now.
        REQUIRE(meter.stop_trace());
        trace.begin_trace(second.bytes(), INT64_MAX, {1, read_ticks(), 1});
        meter.set_trace(trace);
        meter.trace(meter.begin(8), record_of(2));
        meter.trace(meter.begin(8), record_of(3));
        const auto records = second.read();
        REQUIRE(records.size() == 2);
        CHECK(records[0].begin_ns < first.read()[0].begin_ns);
        CHECK(records[1].begin_ns >= records[0].end_ns);
    }

    TEST_CASE("once a trace is stopped its ring is nothing's, while operations go on") {
        constexpr int kTraces = 300;
        OperationTrace trace;
        Meter meter;
        std::atomic<bool> ends{false};
        std::atomic<std::uint64_t> written{0};
        std::thread rank([&] {
            for (std::uint64_t epoch = 0; !ends; ++epoch) {
                const auto timing = meter.begin(8);
                if (timing.traced_ns == 0) continue;
                meter.trace(timing, record_of(epoch));
                ++written;
            }
        });
        for (int i = 0; i < kTraces; ++i) {
            OwnRing ring;
            const std::int64_t began_ns = monotonic_clock_ns();
            trace.begin_trace(ring.bytes(), INT64_MAX, {});
            meter.set_trace(trace);
            const std::uint64_t before = written;
            while (written < before + 3) std::this_thread::yield();
            REQUIRE(meter.stop_trace());
            const std::uint64_t head = ring.ring->head;
            CHECK(head % 2 == 0);
            for (const TraceRecord& record : ring.read()) CHECK(record.begin_ns >= began_ns);
            CHECK(ring.ring->head == head);
        }
        ends = true;
        rank.join();
    }
}
