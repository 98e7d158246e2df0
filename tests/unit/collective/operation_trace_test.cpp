#include "libfabricshm/collective/operation_trace.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <thread>
#include <vector>

using namespace fabricshm;

namespace {

constexpr std::int64_t kUs = 1'000;

struct OwnRing {
    OwnRing() { format_trace(bytes()); }
    std::byte* bytes() { return reinterpret_cast<std::byte*>(ring.get()); }
    std::vector<TraceRecord> read() {
        std::vector<TraceRecord> records;
        TraceReader(bytes()).read(records);
        return records;
    }
    std::unique_ptr<TraceRing> ring = std::make_unique<TraceRing>();
};

}  // namespace

TEST_SUITE("collective.operation_trace") {
    TEST_CASE("an operation has no wait until one is noted, and none of the one before") {
        LongestWait longest;
        longest.begin();
        CHECK(longest.end_ns() == 0);
        longest.note(100 * kUs, 10 * kUs);
        CHECK(longest.end_ns() == 100 * kUs);
        longest.begin();
        CHECK(longest.end_ns() == 0);
    }

    TEST_CASE("of two waits with work between them the longer one counts") {
        LongestWait longest;
        longest.begin();
        longest.note(100 * kUs, 50 * kUs);
        longest.note(200 * kUs, 20 * kUs);
        CHECK(longest.end_ns() == 100 * kUs);
        longest.note(400 * kUs, 60 * kUs);
        CHECK(longest.end_ns() == 400 * kUs);
    }

    TEST_CASE("waits that follow each other within 2 us are one") {
        LongestWait longest;
        longest.begin();
        longest.note(100 * kUs, 50 * kUs);
        // After a while, three short ones in a row: 60 us together.
        longest.note(320 * kUs, 20 * kUs);
        longest.note(341 * kUs, 20 * kUs);
        CHECK(longest.end_ns() == 100 * kUs);
        longest.note(362 * kUs, 20 * kUs);
        CHECK(longest.end_ns() == 362 * kUs);
    }

    TEST_CASE("waits of another thread do not count") {
        LongestWait longest;
        longest.begin();
        std::thread([&] { longest.note(100 * kUs, 50 * kUs); }).join();
        CHECK(longest.end_ns() == 0);
    }

    TEST_CASE("records get their end, and an arrival that lies between begin and end") {
        OwnRing ring;
        OperationTrace trace;
        trace.begin_trace(ring.bytes(), INT64_MAX, {});
        TraceRecord record{};
        record.group_id = 3;
        record.world = 2;
        record.begin_ns = trace.begin();
        record.arrive_ns = 5;  // before it began: the wait was in an operation before
        REQUIRE(trace.write(record));
        const auto records = ring.read();
        REQUIRE(records.size() == 1);
        CHECK(records[0].group_id == 3);
        CHECK(records[0].arrive_ns == records[0].begin_ns);
        CHECK(records[0].end_ns >= records[0].begin_ns);
    }

    TEST_CASE("once the trace is over nothing is written") {
        OwnRing ring;
        OperationTrace trace;
        trace.begin_trace(ring.bytes(), 1, {});
        TraceRecord record{};
        record.group_id = 3;
        record.world = 2;
        record.begin_ns = trace.begin();
        CHECK_FALSE(trace.write(record));
        CHECK(ring.read().empty());
    }
}
