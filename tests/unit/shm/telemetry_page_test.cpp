#include "libfabricshm/shm/telemetry_page.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

using namespace fabricshm;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Page {
    alignas(4096) std::byte bytes[kTelemetryFileBytes];

    Page() {
        std::memset(bytes, 0, sizeof bytes);
        format_telemetry(bytes);
    }
    TelemetryPage& page() { return *reinterpret_cast<TelemetryPage*>(bytes); }
};

TelemetryImage full_image() {
    TelemetryImage image = empty_telemetry();
    image.written_ns = 1000;
    image.arena_id = 3;
    image.group_id = 4;
    image.rank = 1;
    image.world = 3;
    image.steps = 5;
    image.samples = 160;
    image.step_ns = 900;
    image.compute_ns = 600;
    image.loss = 0.5;
    image.queue = 2;
    image.batch = 32;
    for (int rank = 0; rank < 3; ++rank) {
        const auto more = static_cast<unsigned>(rank);
        image.peers.push_back({100u + more, 200u + more, 300 + rank, 0, 0});
    }
    return image;
}

}  // namespace

TEST_SUITE("shm.telemetry_page") {
    TEST_CASE("what a session writes is what the daemon reads, once") {
        Page page;
        CHECK(check_telemetry(page.bytes).ok());
        TelemetryImage read = empty_telemetry();
        TelemetrySeen seen;
        CHECK(read_telemetry_head(page.bytes, read, seen) == PageRead::kUnchanged);
        const TelemetryImage written = full_image();
        write_telemetry_head(page.bytes, written);
        write_telemetry_peers(page.bytes, written);
        CHECK(read_telemetry_head(page.bytes, read, seen) == PageRead::kFresh);
        CHECK(read_telemetry_peers(page.bytes, read, seen) == PageRead::kFresh);
        CHECK(std::memcmp(&read.arena_id, &written.arena_id, 80) == 0);
        CHECK(read.loss == 0.5);
        CHECK(std::isnan(read.gradient_norm));
        REQUIRE(read.peers.size() == 3);
        CHECK(read.peers[2].bytes_to == 102);
        CHECK(read.peers[1].read_ns == 301);
        CHECK(read.bytes_to_all == 303);
        CHECK(read_telemetry_head(page.bytes, read, seen) == PageRead::kUnchanged);
        CHECK(read_telemetry_peers(page.bytes, read, seen) == PageRead::kUnchanged);
    }

    TEST_CASE("a page of another kind or version is refused") {
        Page page;
        page.page().version = kTelemetryVersion + 1;
        CHECK(check_telemetry(page.bytes).error().code == Errc::kVersion);
        page.page().magic = 0;
        CHECK(check_telemetry(page.bytes).error().code == Errc::kCorrupt);
    }

    TEST_CASE("a writer that is never done blocks no reader, and what was read stays") {
        Page page;
        TelemetryImage read = empty_telemetry();
        TelemetrySeen seen;
        write_telemetry_head(page.bytes, full_image());
        REQUIRE(read_telemetry_head(page.bytes, read, seen) == PageRead::kFresh);
        seqlock_begin(page.page().head_sequence);
        seqlock_begin(page.page().peers_sequence);
        CHECK(read_telemetry_head(page.bytes, read, seen) == PageRead::kTorn);
        CHECK(read_telemetry_peers(page.bytes, read, seen) == PageRead::kTorn);
        CHECK(read.samples == 160);
    }

    TEST_CASE("lies are tamed: no negative time, no impossible rank, no infinite norm") {
        Page page;
        TelemetryImage lie = full_image();
        lie.step_ns = -1;
        lie.wait_ns = std::numeric_limits<std::int64_t>::max();
        lie.samples = ~std::uint64_t{0};
        lie.rank = 3;
        lie.loss = kInfinity;
        lie.gradient_norm = -kInfinity;
        write_telemetry_head(page.bytes, lie);
        TelemetryImage read = empty_telemetry();
        TelemetrySeen seen;
        REQUIRE(read_telemetry_head(page.bytes, read, seen) == PageRead::kFresh);
        CHECK(read.step_ns == 0);
        CHECK(read.wait_ns == std::int64_t{1} << 62);
        CHECK(read.samples == std::uint64_t{1} << 62);
        CHECK(read.rank == -1);
        CHECK(read.world == 0);
        CHECK(read.group_id == 0);
        CHECK(std::isnan(read.loss));
        CHECK(std::isnan(read.gradient_norm));
        for (const std::int32_t world : {-1, 0, 65, 257, std::numeric_limits<int>::min()}) {
            lie.world = world;
            lie.rank = 0;
            write_telemetry_head(page.bytes, lie);
            REQUIRE(read_telemetry_head(page.bytes, read, seen) == PageRead::kFresh);
            CHECK(read.world == (world == 65 ? 65 : 0));
            CHECK(peers_of(read) == (world == 65 ? 65 : 0));
        }
    }

    TEST_CASE("a group of 256 ranks has a row for each of them") {
        Page page;
        TelemetryImage written = full_image();
        written.world = kPeersMax;
        written.peers.resize(kPeersMax);
        for (int rank = 0; rank < kPeersMax; ++rank) {
            auto& row = written.peers[static_cast<std::size_t>(rank)];
            row.bytes_to = 1;
            row.latency_ns = rank == 255 ? -5 : 1000 + rank;
            row.reads = rank == 254 ? ~std::uint64_t{0} : 7;
        }
        write_telemetry_head(page.bytes, written);
        write_telemetry_peers(page.bytes, written);
        TelemetryImage read = empty_telemetry();
        TelemetrySeen seen;
        REQUIRE(read_telemetry_head(page.bytes, read, seen) == PageRead::kFresh);
        REQUIRE(read_telemetry_peers(page.bytes, read, seen) == PageRead::kFresh);
        REQUIRE(read.peers.size() == 256);
        CHECK(read.bytes_to_all == 256);
        CHECK(read.peers[253].latency_ns == 1253);
        CHECK(read.peers[254].reads == std::uint64_t{1} << 62);
        CHECK(read.peers[255].latency_ns == 0);
    }

    TEST_CASE("the rows of a group are not taken for those of the next one") {
        Page page;
        TelemetryImage written = full_image();
        write_telemetry_head(page.bytes, written);
        write_telemetry_peers(page.bytes, written);
        TelemetryImage read = empty_telemetry();
        TelemetrySeen seen;
        REQUIRE(read_telemetry_head(page.bytes, read, seen) == PageRead::kFresh);
        REQUIRE(read_telemetry_peers(page.bytes, read, seen) == PageRead::kFresh);
        written.group_id = 99;
        write_telemetry_head(page.bytes, written);
        REQUIRE(read_telemetry_head(page.bytes, read, seen) == PageRead::kFresh);
        CHECK(read.peers.empty());
        CHECK(read.bytes_to_all == 0);
        CHECK(read_telemetry_peers(page.bytes, read, seen) == PageRead::kFresh);
        CHECK(read.peers.size() == 3);
    }

    TEST_CASE("shards are read as written, each once and none after a gap") {
        Page page;
        TelemetryImage written = empty_telemetry();
        written.shards[0] = {3, 4, 10, 1000};
        written.shards[1] = {3, 5, 20, ~std::uint64_t{0}};
        written.shards[2] = {3, 4, 99, 99};
        written.shards[3] = {2, 4, 30, 300};
        written.shards[5] = {9, 9, 9, 9};
        write_telemetry_shards(page.bytes, written);
        TelemetryImage read = empty_telemetry();
        TelemetrySeen seen;
        REQUIRE(read_telemetry_shards(page.bytes, read, seen) == PageRead::kFresh);
        CHECK(read.shards[0].bytes == 1000);
        CHECK(read.shards[1].reads == 20);
        CHECK(read.shards[1].bytes == std::uint64_t{1} << 62);
        CHECK(read.shards[2].arena == 2);
        CHECK(read.shards[2].reads == 30);
        CHECK(read.shards[3].shard == 0);
        CHECK(read.shards[5].shard == 0);
        CHECK(read_telemetry_shards(page.bytes, read, seen) == PageRead::kUnchanged);
        seqlock_begin(page.page().shards_sequence);
        CHECK(read_telemetry_shards(page.bytes, read, seen) == PageRead::kTorn);
        CHECK(read.shards[0].reads == 10);
    }

    TEST_CASE("a page that a hostile process scribbles over is read without harm") {
        Page page;
        std::atomic<bool> stop{false};
        std::thread scribbler([&] {
            std::mt19937_64 random(7);
            auto* words = reinterpret_cast<SharedWord*>(page.bytes);
            while (!stop.load()) {
                words[random() % (sizeof(TelemetryPage) / 8)].store(random());
            }
        });
        TelemetryImage read = empty_telemetry();
        TelemetrySeen seen;
        int impossible = 0;
        for (int i = 0; i < 20'000; ++i) {
            (void)read_telemetry_head(page.bytes, read, seen);
            (void)read_telemetry_peers(page.bytes, read, seen);
            (void)read_telemetry_shards(page.bytes, read, seen);
            const bool good = read.rank >= -1 && read.rank < std::max(read.world, 1) &&
                              read.world >= 0 && read.world <= 256 && read.step_ns >= 0 &&
                              !std::isinf(read.loss) &&
                              read.shards[0].bytes <= std::uint64_t{1} << 62;
            impossible += !good;
        }
        stop.store(true);
        scribbler.join();
        CHECK(impossible == 0);
    }
}
