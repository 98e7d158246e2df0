#include "fabricd/telemetry/latency_reader.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <random>

#include "libfabricshm/shm/telemetry_page.hpp"

using namespace fabricd;
using fabricshm::LatencyImage;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// A page, what its session has counted, and the sums of the host.
struct Written {
    Written() { fabricshm::format_telemetry(bytes()); }
    std::byte* bytes() { return reinterpret_cast<std::byte*>(page.get()); }
    void count(int row, int bucket, std::uint64_t count, std::uint64_t sum_ns) {
        image->used |= std::uint64_t{1} << row;
        image->rows[row].counts[bucket] += count;
        image->rows[row].sum_ns += sum_ns;
    }
    void read(std::int64_t now_ns) {
        fabricshm::write_telemetry_latencies(bytes(), *image);
        reader.read(bytes(), now_ns, sums);
    }

    std::unique_ptr<fabricshm::TelemetryPage> page = std::make_unique<fabricshm::TelemetryPage>();
    std::unique_ptr<LatencyImage> image = std::make_unique<LatencyImage>();
    LatencyReader reader;
    LatencySums sums;
};

}  // namespace

TEST_SUITE("telemetry.latency_reader") {
    TEST_CASE("what a session counts is added once, row by row") {
        Written session;
        session.count(0, 1, 10, 4'000);
        session.image->failures[3] = 2;
        session.read(kSecond);
        session.reader.read(session.bytes(), 2 * kSecond, session.sums);
        session.count(0, 1, 5, 2'000);
        session.count(9, 24, 1, 3 * kSecond);
        session.read(3 * kSecond);
        const LatencyImage& sums = session.sums.image;
        CHECK(sums.rows[0].counts[1] == 15);
        CHECK(sums.rows[0].sum_ns == 6'000);
        CHECK(sums.rows[9].counts[24] == 1);
        CHECK(sums.rows[9].sum_ns == 3 * kSecond);
        CHECK(sums.used == (1U | 1U << 9));
        CHECK(sums.failures[3] == 2);
        CHECK(session.sums.left_out == 0);
    }

    TEST_CASE("sums of several sessions add up, and stay when one has gone") {
        LatencySums sums;
        for (int i = 0; i < 3; ++i) {
            Written session;
            session.count(4, 2, 7, 7 * 700);
            fabricshm::write_telemetry_latencies(session.bytes(), *session.image);
            session.reader.read(session.bytes(), kSecond, sums);
        }
        CHECK(sums.image.rows[4].counts[2] == 21);
    }

    TEST_CASE("counts that fall, or rise faster than operations can be, are left out and counted") {
        Written session;
        session.count(0, 1, 1'000, 400'000);
        session.read(kSecond);
        // 100 million operations in a second are the bound; 1,000 more for those counted at once.
        session.count(0, 1, 100'002'000, 0);
        session.read(2 * kSecond);
        CHECK(session.sums.image.rows[0].counts[1] == 1'000);
        CHECK(session.sums.left_out == 1);
        session.image->rows[0].counts[1] = 5;
        session.read(3 * kSecond);
        CHECK(session.sums.image.rows[0].counts[1] == 1'000);
        CHECK(session.sums.left_out == 2);
        // From there on it is believed again.
        session.count(0, 1, 1, 400);
        session.read(4 * kSecond);
        CHECK(session.sums.image.rows[0].counts[1] == 1'001);
        session.image->failures[0] = UINT64_MAX;
        session.read(5 * kSecond);
        CHECK(session.sums.image.failures[0] == 0);
        CHECK(session.sums.left_out == 3);
    }

    TEST_CASE("a sum of times is held to what its buckets allow") {
        Written session;
        session.count(0, 3, 10, UINT64_MAX / 2);  // 1 to 2 us each
        session.read(kSecond);
        CHECK(session.sums.image.rows[0].sum_ns == 20'000);
        session.count(1, 3, 10, 0);
        session.read(2 * kSecond);
        CHECK(session.sums.image.rows[1].sum_ns == 10'000);
    }

    TEST_CASE("whatever a hostile session writes, counts rise by no more than the bound") {
        Written session;
        std::mt19937_64 random(7);
        session.count(0, 0, 1, 100);
        session.read(kSecond);
        auto* words = reinterpret_cast<fabricshm::SharedWord*>(session.bytes());
        std::uint64_t before = 0;
        int beyond = 0;
        for (int i = 2; i < 300; ++i) {
            fabricshm::seqlock_begin(session.page->latencies_sequence);
            session.page->latencies_used.store(random());
            for (int word = 0; word < 50; ++word) {
                words[1536 + random() % (sizeof(fabricshm::TelemetryPage) / 8 - 1536)].store(
                    random() >> random() % 64);
            }
            fabricshm::seqlock_end(session.page->latencies_sequence);
            session.reader.read(session.bytes(), i * kSecond, session.sums);
            std::uint64_t all = 0;
            for (const auto& row : session.sums.image.rows) {
                for (const std::uint64_t count : row.counts) all += count;
            }
            beyond += all < before || all - before > 100'001'000;
            before = all;
        }
        CHECK(beyond == 0);
        CHECK(session.sums.left_out > 0);
    }
}
