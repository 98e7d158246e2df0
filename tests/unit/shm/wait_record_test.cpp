#include "libfabricshm/shm/wait_record.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "libfabricshm/shm/telemetry_page.hpp"

using namespace fabricshm;

namespace {

using Records = WaitRecord[kWaitsShown];
using PageOnHeap = std::unique_ptr<TelemetryPage>;

std::byte* bytes_of(const PageOnHeap& page) {
    return reinterpret_cast<std::byte*>(page.get());
}

WaitRecord honest() {
    WaitRecord record{};
    record.arena_id = 3;
    record.group_id = 4;
    record.began_ns = 1000;
    record.bytes = 4096;
    record.rank = 1;
    record.world = 200;
    set_kind(record, "reduce_scatter");
    add_late(record, 0);
    add_late(record, 199);
    return record;
}

/// `record` as the daemon reads it.
WaitRecord through_page(const WaitRecord& record) {
    const auto page = std::make_unique<TelemetryPage>();
    const Records written = {record};
    write_telemetry_waits(bytes_of(page), written);
    Records read;
    CHECK(read_telemetry_waits(bytes_of(page), read) == PageRead::kFresh);
    return read[0];
}

bool is_sane(const WaitRecord& record) {
    if (record.group_id == 0) return record.arena_id == 0 && record.world == 0;
    bool any = false;
    for (int rank = 0; rank < 256; ++rank) {
        if (!is_late(record, rank)) continue;
        any = true;
        if (rank == record.rank || rank >= record.world) return false;
    }
    const std::string kind(record.kind, strnlen(record.kind, sizeof record.kind));
    return any && record.arena_id != 0 && record.world >= 2 && record.world <= 256 &&
           record.rank >= 0 && record.rank < record.world && record.began_ns >= 0 &&
           record.bytes <= std::uint64_t{1} << 62 && !kind.empty() && kind.size() < 16 &&
           kind.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos;
}

}  // namespace

TEST_SUITE("shm.wait_record") {
    TEST_CASE("what a session shows is what the daemon reads, until it is taken away") {
        const auto page = std::make_unique<TelemetryPage>();
        Records read;
        CHECK(read_telemetry_waits(bytes_of(page), read) == PageRead::kUnchanged);
        CHECK(read[0].group_id == 0);
        Records written = {};
        written[2] = honest();
        write_telemetry_waits(bytes_of(page), written);
        REQUIRE(read_telemetry_waits(bytes_of(page), read) == PageRead::kFresh);
        CHECK(read[0].group_id == 0);
        CHECK(std::memcmp(&read[2], &written[2], sizeof read[2]) == 0);
        CHECK(is_late(read[2], 199));
        CHECK_FALSE(is_late(read[2], 198));
        written[2] = WaitRecord{};
        write_telemetry_waits(bytes_of(page), written);
        REQUIRE(read_telemetry_waits(bytes_of(page), read) == PageRead::kFresh);
        CHECK(read[2].group_id == 0);
    }

    TEST_CASE("a record of an impossible group, or in which no other rank is late, is none") {
        const auto dropped = [](auto change) {
            WaitRecord record = honest();
            change(record);
            return through_page(record).group_id == 0;
        };
        CHECK_FALSE(dropped([](WaitRecord&) {}));
        CHECK(dropped([](WaitRecord& record) { record.arena_id = 0; }));
        CHECK(dropped([](WaitRecord& record) { record.rank = -1; }));
        CHECK(dropped([](WaitRecord& record) { record.rank = 200; }));
        CHECK(dropped([](WaitRecord& record) { record.world = 257; }));
        CHECK(dropped([](WaitRecord& record) { record.world = 1; }));
        CHECK(dropped([](WaitRecord& record) { std::memset(record.late, 0, sizeof record.late); }));
        CHECK(dropped([](WaitRecord& record) {
            std::memset(record.late, 0, sizeof record.late);
            add_late(record, 1);    // itself
            add_late(record, 200);  // no rank of the group
        }));
    }

    TEST_CASE("lies are tamed: no negative time, no rank beyond the world, no text but a word") {
        WaitRecord lie = honest();
        lie.began_ns = std::numeric_limits<std::int64_t>::min();
        lie.bytes = ~std::uint64_t{0};
        std::memset(lie.late, 0xff, sizeof lie.late);
        std::memset(lie.kind, 'x', sizeof lie.kind);
        WaitRecord read = through_page(lie);
        CHECK(is_sane(read));
        CHECK(is_late(read, 199));
        CHECK(std::string(read.kind) == std::string(15, 'x'));
        for (const char* kind : {"\033[2J", "A", ""}) {
            set_kind(lie, kind);
            CHECK(std::string(through_page(lie).kind) == "operation");
        }
    }

    TEST_CASE("a writer that is never done keeps no reader") {
        const auto page = std::make_unique<TelemetryPage>();
        Records read = {honest()};
        write_telemetry_waits(bytes_of(page), read);
        seqlock_begin(page->waits_sequence);
        CHECK(read_telemetry_waits(bytes_of(page), read) == PageRead::kTorn);
        CHECK(read[0].group_id == 0);
    }

    TEST_CASE("records that a hostile process scribbles over are read without harm") {
        const auto page = std::make_unique<TelemetryPage>();
        std::atomic<bool> stop{false};
        std::thread scribbler([&] {
            std::mt19937_64 random(7);
            while (!stop.load()) {
                page->waits_sequence.store(random() & ~std::uint64_t{1});
                for (SharedWord& word : page->waits) word.store(random() & random() & 0xff);
            }
        });
        int impossible = 0;
        Records read;
        for (int i = 0; i < 2'000; ++i) {
            (void)read_telemetry_waits(bytes_of(page), read);
            for (const WaitRecord& record : read) impossible += !is_sane(record);
        }
        stop.store(true);
        scribbler.join();
        CHECK(impossible == 0);
    }
}
