#include "libfabricshm/shm/trace_ring.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "libfabricshm/shm/wait_record.hpp"

using namespace fabricshm;

namespace {

/// A ring in memory of this process.
struct RingFile {
    std::unique_ptr<TraceRing> ring = std::make_unique<TraceRing>();
    RingFile() { format_trace(bytes()); }
    std::byte* bytes() { return reinterpret_cast<std::byte*>(ring.get()); }
};

// Every word says which record it is of.
TraceRecord record_of(std::uint64_t number, std::uint16_t rank = 1) {
    TraceRecord record{};
    record.group_id = number + 1;
    record.epoch = number;
    record.bytes = 8 * number;
    record.begin_ns = static_cast<std::int64_t>(number);
    record.arrive_ns = record.begin_ns + 1;
    record.end_ns = record.begin_ns + 2;
    record.way = TraceWay::kTiny;
    record.rank = rank;
    record.world = 4;
    return record;
}

bool is_whole(const TraceRecord& record) {
    const TraceRecord wanted = record_of(record.epoch, record.rank);
    return std::memcmp(&record, &wanted, sizeof record) == 0;
}

}  // namespace

TEST_SUITE("shm.trace_ring") {
    TEST_CASE("records are read once, in the order in which they were written") {
        RingFile file;
        CHECK(check_trace(file.bytes()).ok());
        TraceReader reader(file.bytes());
        std::vector<TraceRecord> records;
        reader.read(records);
        CHECK(records.empty());
        for (std::uint64_t i = 0; i < 10; ++i) write_trace(file.bytes(), record_of(i));
        reader.read(records);
        reader.read(records);
        REQUIRE(records.size() == 10);
        for (std::uint64_t i = 0; i < 10; ++i) {
            CHECK(records[i].epoch == i);
            CHECK(is_whole(records[i]));
        }
        CHECK(reader.lost() == 0);
        CHECK(reader.senseless() == 0);
    }

    TEST_CASE("a ring that went round has its last records, and the others are counted as lost") {
        RingFile file;
        TraceReader reader(file.bytes());
        constexpr std::uint64_t kWritten = kTraceRecords + 100;
        for (std::uint64_t i = 0; i < kWritten; ++i) write_trace(file.bytes(), record_of(i));
        std::vector<TraceRecord> records;
        reader.read(records);
        REQUIRE(records.size() == kTraceRecords);
        CHECK(records.front().epoch == 100);
        CHECK(records.back().epoch == kWritten - 1);
        CHECK(reader.lost() == 100);
        write_trace(file.bytes(), record_of(kWritten));
        reader.read(records);
        CHECK(records.back().epoch == kWritten);
        CHECK(reader.lost() == 100);
    }

    TEST_CASE(
        "what two threads write while it is read is whole, and each record is accounted for") {
        RingFile file;
        constexpr std::uint64_t kEach = 60'000;
        const auto write = [&](std::uint16_t rank) {
            for (std::uint64_t i = 0; i < kEach; ++i) {
                write_trace(file.bytes(), record_of(i, rank));
                if (i % 512 == 0) std::this_thread::yield();
            }
        };
        TraceReader reader(file.bytes());
        std::thread first(write, std::uint16_t{0});
        std::thread second(write, std::uint16_t{1});
        std::vector<TraceRecord> records;
        std::uint64_t seen = 0, torn = 0, backwards = 0;
        std::uint64_t next[2] = {0, 0};
        const auto take = [&] {
            records.clear();
            reader.read(records);
            for (const TraceRecord& record : records) {
                torn += is_whole(record) ? 0 : 1;
                backwards += record.epoch < next[record.rank & 1] ? 1 : 0;
                next[record.rank & 1] = record.epoch + 1;
            }
            seen += records.size();
        };
        while (next[0] < kEach || next[1] < kEach) {
            take();
            std::this_thread::yield();
            // A thread's last record may be among the lost ones.
            if (seen + reader.lost() >= 2 * kEach) break;
        }
        first.join();
        second.join();
        take();
        CHECK(torn == 0);
        CHECK(backwards == 0);
        CHECK(seen + reader.lost() == 2 * kEach);
        CHECK(reader.senseless() == 0);
    }

    TEST_CASE("a record that a writer did not finish is not read") {
        RingFile file;
        write_trace(file.bytes(), record_of(0));
        write_trace(file.bytes(), record_of(1));
        // As a writer that was killed in the middle of the second leaves it, and as it would be
        // when the head came first.
        file.ring->slots[1].sequence.store(3);
        TraceReader reader(file.bytes());
        std::vector<TraceRecord> records;
        reader.read(records);
        REQUIRE(records.size() == 1);
        CHECK(records[0].epoch == 0);
        CHECK(reader.lost() == 1);
        // Killed before the head: others in the process are dead, too, and nothing waits for it.
        file.ring->head.store(5);
        write_trace(file.bytes(), record_of(7));
        CHECK(file.ring->lost.load() == 1);
        reader.read(records);
        CHECK(records.size() == 1);
    }

    TEST_CASE("whatever is in a ring, reading is bounded and what it gives makes sense") {
        RingFile file;
        std::mt19937_64 random(5);
        auto* words = reinterpret_cast<SharedWord*>(file.bytes());
        TraceReader reader(file.bytes());
        for (int round = 0; round < 60; ++round) {
            for (std::size_t i = 2; i < sizeof(TraceRing) / 8; ++i) words[i].store(random());
            if (round % 3 == 1) file.ring->head.store(random() % 100'000);
            if (round % 3 == 2) {
                // Sequences as they should be, around words that are not.
                const std::uint64_t from = random() % 1'000'000;
                file.ring->head.store(2 * (from + kTraceRecords));
                for (std::uint64_t n = from; n < from + kTraceRecords; ++n) {
                    file.ring->slots[n % kTraceRecords].sequence.store(2 * n + 2);
                }
            }
            std::vector<TraceRecord> records;
            reader.read(records);
            CHECK(records.size() <= kTraceRecords);
            for (const TraceRecord& record : records) CHECK(makes_sense(record, 256));
        }
        CHECK(reader.senseless() > 0);
        CHECK(reader.lost() <= 2 * kBelievedCount);
    }

    TEST_CASE("a file of another kind or version is refused") {
        RingFile file;
        file.ring->version = kTraceVersion + 1;
        CHECK(check_trace(file.bytes()).error().code == Errc::kVersion);
        file.ring->magic = 1;
        CHECK(check_trace(file.bytes()).error().code == Errc::kCorrupt);
    }
}
