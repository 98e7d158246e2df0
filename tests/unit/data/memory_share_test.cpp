#include "fabricd/data/serve/memory_share.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <set>
#include <vector>

using namespace fabricd;
using namespace fabricshm;
using namespace std::chrono_literals;

namespace {

constexpr Bytes kArena = 2 * kMiB + 8 * kDataChunkBytes;
constexpr Bytes kFloor = 2 * kMiB + 2 * kDataChunkBytes;

struct Pins : PinPages {
    std::set<std::uint64_t> held;
    bool search(std::span<const std::uint64_t> lines, std::span<std::uint8_t> pinned) override {
        for (std::size_t i = 0; i < lines.size(); ++i) pinned[i] = held.count(lines[i]) != 0;
        return true;
    }
};

struct Daemon : ElasticMemory {
    std::optional<ElasticTarget> asked;
    std::vector<Bytes> kept;
    std::vector<Bytes> used;  // by the cache, when it said so
    ElasticUse use;
    ChunkCache* cache = nullptr;
    std::optional<ElasticTarget> target() override { return asked; }
    void keep(const ElasticTarget& target, Bytes bytes) override {
        kept.push_back(bytes);
        used.push_back(CacheEnd(*cache).end());
        if (bytes <= target.bytes) asked.reset();
    }
    void report(const ElasticUse& now) override { use = now; }
};

struct NoNotes : NotesSource {
    void each(const std::function<void(std::uint64_t, Notes)>&) override {}
};

struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
};

struct Bench {
    std::unique_ptr<std::byte, Free> memory{
        static_cast<std::byte*>(std::aligned_alloc(4096, kArena))};
    DataTables tables = plan_data_tables(1, 64, kArena).value();
    Pins pins;
    ChunkCache cache{memory.get(), tables, pins};
    Daemon daemon;
    NoNotes source;
    ReaderNotes notes{source};
    int resized = 0;
    MemoryShare share{cache, daemon, kFloor, [this] { ++resized; }};
    TimePoint now{1h};
    Duration waiting{0};
    std::vector<std::uint64_t> lines;

    Bench() {
        std::fill_n(memory.get(), tables.chunks_offset, std::byte{0});
        cache.format();
        daemon.cache = &cache;
        for (std::uint64_t file = 1; file <= 8; ++file) {
            lines.push_back(cache.add_file(file, kDataChunkBytes).value());
            REQUIRE(cache.begin(lines.back(), kDataChunkBytes, ChunkKind::kTried, true));
            cache.finish(lines.back(), 1);
        }
    }
    void tick() {
        now += 20ms;
        share.tick(notes, waiting, now);
    }
};

}  // namespace

TEST_SUITE("data.memory_share") {
    TEST_CASE(
        "what is given is empty before it is said, and what is got is said before it is used") {
        Bench bench;
        const Bytes target = bench.tables.chunks_offset + 4 * kDataChunkBytes;
        bench.daemon.asked = ElasticTarget{{1, target + 4096}, target};
        bench.tick();
        REQUIRE(bench.daemon.kept.size() == 1);
        CHECK(bench.daemon.kept[0] == target);
        CHECK(bench.daemon.used[0] == target);
        CHECK_FALSE(bench.daemon.asked);
        bench.tick();
        CHECK_FALSE(bench.share.is_shrinking());
        bench.daemon.asked = ElasticTarget{{2, kArena + 4096}, kArena};
        bench.tick();
        REQUIRE(bench.daemon.kept.size() == 2);
        CHECK(bench.daemon.kept[1] == kArena);
        CHECK(bench.daemon.used[1] == target);
        CHECK(CacheEnd(bench.cache).end() == kArena);
        CHECK(bench.resized == 2);
        CHECK(bench.cache.problems() == "");
    }

    TEST_CASE("a wait counts while it lasts, and what was reported never falls") {
        Bench bench;
        for (const auto waiting : {0s, 1s, 3s}) {
            bench.waiting = waiting;
            bench.now += 1s;
            bench.tick();
            CHECK(bench.daemon.use.stall_ns ==
                  static_cast<std::uint64_t>(std::chrono::nanoseconds(waiting).count()));
        }
        // It has ended, and its reader has not noted it yet.
        bench.waiting = 0s;
        bench.now += 1s;
        bench.tick();
        CHECK(bench.daemon.use.stall_ns == 3'000'000'000);
    }

    TEST_CASE("what readers have pinned is given when they let it go, and the floor never") {
        Bench bench;
        bench.pins.held.insert(bench.lines[5]);
        const Bytes target = bench.tables.chunks_offset + kDataChunkBytes;
        bench.daemon.asked = ElasticTarget{{1, target + 4096}, target};
        bench.tick();
        REQUIRE(bench.daemon.kept.size() == 1);
        CHECK(bench.daemon.kept[0] == bench.tables.chunks_offset + 6 * kDataChunkBytes);
        CHECK(bench.share.is_shrinking());
        bench.pins.held.clear();
        bench.tick();
        CHECK(bench.daemon.kept.back() == kFloor);
        CHECK(CacheEnd(bench.cache).end() == kFloor);
        CHECK(bench.share.is_shrinking());  // the daemon asks for more than there is to give
        // It has no use for the rest any more: the cache has all of it again.
        bench.daemon.asked = ElasticTarget{{2, kFloor + 4096}, kFloor};
        bench.tick();
        CHECK_FALSE(bench.daemon.asked);
        CHECK(bench.cache.problems() == "");
        for (int i = 0; i < 6; ++i) bench.tick();
        CHECK(bench.daemon.use.used == bench.cache.used());
    }
}
