#include "fabricd/data/blocks/chunk_cache.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "fabricd/data/blocks/cache_end.hpp"
#include "libfabricshm/base/crc32c.hpp"

using namespace fabricd;
using namespace fabricshm;

namespace {

constexpr std::uint64_t kLines = 400;
constexpr Bytes kArena = 2 * kMiB + 8 * kDataChunkBytes;

struct Pins : PinPages {
    std::multiset<std::uint64_t> held;
    bool is_known = true;
    bool search(std::span<const std::uint64_t> lines, std::span<std::uint8_t> pinned) override {
        CHECK(std::is_sorted(lines.begin(), lines.end()));
        for (std::size_t i = 0; i < lines.size(); ++i) pinned[i] = held.count(lines[i]) != 0;
        return is_known;
    }
};

struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
};

struct Bench {
    std::unique_ptr<std::byte, Free> memory{
        static_cast<std::byte*>(std::aligned_alloc(4096, kArena))};
    DataTables tables = plan_data_tables(1, kLines, kArena).value();
    Pins pins;
    std::unique_ptr<ChunkCache> cache;

    Bench() {
        std::fill_n(memory.get(), tables.chunks_offset, std::byte{0});
        start();
        cache->format();
    }
    void start() { cache = std::make_unique<ChunkCache>(memory.get(), tables, pins); }

    // The content follows from file and chunk, by a rule of its own.
    static std::byte content(std::uint64_t file, std::uint64_t chunk, Bytes at) {
        return static_cast<std::byte>((file * 131 + chunk * 31 + at * 7) >> 2);
    }
    // Some of the bytes alone, so that a story is short.
    static Bytes stride(Bytes bytes) { return std::max<Bytes>(1, bytes / 16); }

    bool fill(std::uint64_t line, std::uint64_t file, std::uint32_t bytes, ChunkKind kind,
              bool is_wanted = true) {
        const auto room = cache->begin(line, bytes, kind, is_wanted);
        if (!room) return false;
        write(*room, file, cache->fields(line).chunk);
        cache->finish(line, static_cast<std::uint32_t>(file));
        return true;
    }
    static void write(const ChunkCache::Room& room, std::uint64_t file, std::uint64_t chunk) {
        for (Bytes at = 0; at < room.bytes; at += stride(room.bytes)) {
            room.into[at] = content(file, chunk, at);
        }
    }
    // As a reader that has it pinned.
    bool is_right(std::uint64_t line, std::uint64_t file, std::uint64_t chunk) const {
        const auto extent = read_data_line(data_line(memory.get(), tables, line), tables);
        if (!extent || extent->file != file || extent->chunk != chunk) return false;
        for (Bytes at = 0; at < extent->bytes; at += stride(extent->bytes)) {
            if (memory.get()[extent->offset + at] != content(file, chunk, at)) return false;
        }
        return true;
    }
};

struct ModelFile {
    std::uint64_t first = 0;
    Bytes bytes = 0;
};

}  // namespace

TEST_SUITE("data.chunk_cache") {
    TEST_CASE("a filled line is ready with its fields, and its memory is its own") {
        Bench bench;
        const auto first = bench.cache->add_file(7, kDataChunkBytes + 100);
        REQUIRE(first);
        CHECK(bench.cache->state(*first) == DataLineState::kEmpty);
        REQUIRE(bench.fill(*first, 7, kDataChunkBytes, ChunkKind::kTried));
        REQUIRE(bench.fill(*first + 1, 7, 100, ChunkKind::kTried));
        CHECK(bench.cache->state(*first) == DataLineState::kReady);
        CHECK(bench.is_right(*first, 7, 0));
        CHECK(bench.is_right(*first + 1, 7, 1));
        CHECK(bench.cache->used() == kDataChunkBytes + 128);
        CHECK(bench.cache->problems() == "");
    }

    TEST_CASE("a pinned line never leaves, and one that readers can't be asked about neither") {
        Bench bench;
        std::vector<std::uint64_t> lines;
        for (std::uint64_t file = 1; file <= 8; ++file) {
            lines.push_back(bench.cache->add_file(file, kDataChunkBytes).value());
            const bool fits = bench.fill(lines.back(), file, kDataChunkBytes, ChunkKind::kTried);
            REQUIRE(fits);
            bench.pins.held.insert(lines.back());
        }
        const auto more = bench.cache->add_file(9, kDataChunkBytes).value();
        CHECK_FALSE(bench.cache->begin(more, kDataChunkBytes, ChunkKind::kTried, true));
        CHECK(bench.cache->drop(lines) == 0);
        bench.pins.held.erase(lines[3]);
        bench.pins.is_known = false;
        CHECK_FALSE(bench.cache->begin(more, kDataChunkBytes, ChunkKind::kTried, true));
        bench.pins.is_known = true;
        CHECK(bench.fill(more, 9, kDataChunkBytes, ChunkKind::kTried));
        CHECK(bench.cache->state(lines[3]) == DataLineState::kEmpty);
        for (std::uint64_t file = 1; file <= 8; ++file) {
            if (file != 4) CHECK(bench.is_right(lines[file - 1], file, 0));
        }
        CHECK(bench.cache->problems() == "");
    }

    TEST_CASE("a version that is gone keeps its bytes until its readers have let go") {
        Bench bench;
        const auto line = bench.cache->add_file(1, 1000).value();
        REQUIRE(bench.fill(line, 1, 1000, ChunkKind::kKept));
        bench.pins.held.insert(line);
        bench.cache->retire(line, 1);
        CHECK(bench.cache->state(line) == DataLineState::kGone);
        CHECK(bench.is_right(line, 1, 0));
        CHECK(bench.cache->used() == 1024);
        CHECK(bench.cache->stats().free_lines == kLines - 1);
        bench.pins.held.clear();
        bench.cache->sweep();
        CHECK(bench.cache->used() == 0);
        CHECK(bench.cache->stats().free_lines == kLines);
        CHECK(bench.cache->problems() == "");
    }

    TEST_CASE("a version that goes while it is filled leaves when the silo lets go of the memory") {
        Bench bench;
        const auto line = bench.cache->add_file(1, 1000).value();
        REQUIRE(bench.cache->begin(line, 1000, ChunkKind::kTried, true));
        bench.cache->retire(line, 1);
        CHECK(bench.cache->state(line) == DataLineState::kGone);
        CHECK(bench.cache->used() == 1024);
        bench.cache->finish(line, 0);
        CHECK(bench.cache->used() == 0);
        CHECK(bench.cache->stats().free_lines == kLines);
        CHECK(bench.cache->problems() == "");
    }

    TEST_CASE("what passes goes first once it was read, and last until then") {
        Bench bench;
        std::map<std::uint64_t, std::uint64_t> line_of;
        const auto add = [&](std::uint64_t file, ChunkKind kind, bool is_wanted) {
            line_of[file] = bench.cache->add_file(file, kDataChunkBytes).value();
            return bench.fill(line_of[file], file, kDataChunkBytes, kind, is_wanted);
        };
        for (std::uint64_t file = 1; file <= 4; ++file) REQUIRE(add(file, ChunkKind::kKept, true));
        for (std::uint64_t file = 5; file <= 6; ++file)
            REQUIRE(add(file, ChunkKind::kPassing, true));
        for (std::uint64_t file = 7; file <= 8; ++file) REQUIRE(add(file, ChunkKind::kTried, true));
        bench.cache->touch(line_of[6]);
        const auto is_there = [&](std::uint64_t file) {
            return bench.cache->state(line_of[file]) == DataLineState::kReady;
        };
        REQUIRE(add(9, ChunkKind::kPassing, false));
        CHECK_FALSE(is_there(6));
        REQUIRE(add(10, ChunkKind::kPassing, false));
        CHECK_FALSE(is_there(7));
        REQUIRE(add(11, ChunkKind::kPassing, false));
        CHECK_FALSE(is_there(8));
        // Nothing but kept and unread is left: only for a reader that waits. Were it what is
        // unread, its reader would be the next one that waits, and so on to the end of the epoch.
        CHECK_FALSE(add(12, ChunkKind::kPassing, false));
        REQUIRE(add(13, ChunkKind::kTried, true));
        CHECK_FALSE(is_there(1));
        for (std::uint64_t file = 2; file <= 5; ++file) CHECK(is_there(file));
        for (std::uint64_t file = 9; file <= 11; ++file) CHECK(is_there(file));
        CHECK(bench.cache->problems() == "");
    }

    TEST_CASE("holes between what is kept become one, by moving it") {
        Bench bench;
        std::vector<std::uint64_t> lines;
        constexpr std::uint32_t kPiece = 512 * 1024;
        for (std::uint64_t file = 1; file <= 64; ++file) {
            lines.push_back(bench.cache->add_file(file, kPiece).value());
            REQUIRE(bench.fill(lines.back(), file, kPiece, ChunkKind::kKept));
        }
        // Every fourth goes: 8 MiB are free in 16 holes.
        for (std::size_t i = 0; i < lines.size(); i += 4) {
            CHECK(bench.cache->drop({lines[i]}) == 1);
        }
        const auto large = bench.cache->add_file(100, kDataChunkBytes).value();
        CHECK(bench.fill(large, 100, kDataChunkBytes, ChunkKind::kTried));
        CHECK(bench.cache->stats().moved > 0);
        CHECK(bench.cache->stats().evicted == 16);
        for (std::uint64_t file = 1; file <= 64; ++file) {
            if (file % 4 != 1) CHECK(bench.is_right(lines[file - 1], file, 0));
        }
        CHECK(bench.cache->problems() == "");
    }

    TEST_CASE("a cache that is started again has what was ready, and nothing that was filling") {
        Bench bench;
        const auto ready = bench.cache->add_file(1, 1000).value();
        const auto filling = bench.cache->add_file(2, 1000).value();
        const auto unknown = bench.cache->add_file(3, 1000).value();
        const auto leaving = bench.cache->add_file(4, 1000).value();
        const auto gone = bench.cache->add_file(5, 1000).value();
        for (const auto line : {ready, unknown, leaving, gone}) {
            REQUIRE(bench.fill(line, bench.cache->fields(line).file, 1000, ChunkKind::kTried));
        }
        REQUIRE(bench.cache->begin(filling, 1000, ChunkKind::kTried, true));
        bench.pins.held.insert(gone);
        bench.cache->retire(gone, 1);
        auto& word = data_line(bench.memory.get(), bench.tables, leaving).word;
        word = data_word(data_generation(word), DataLineState::kLeaving);

        bench.start();
        bench.cache->take_up([&](std::uint64_t line) {
            return line == ready || line == filling || line == leaving;
        });
        CHECK(bench.is_right(ready, 1, 0));
        CHECK(bench.cache->state(ready) == DataLineState::kReady);
        CHECK(bench.cache->state(leaving) == DataLineState::kReady);
        CHECK(bench.cache->state(filling) == DataLineState::kEmpty);
        CHECK(bench.cache->state(gone) == DataLineState::kGone);
        CHECK(bench.is_right(gone, 5, 0));
        CHECK(bench.cache->used() == 5 * 1024);
        bench.cache->sweep();
        CHECK(bench.cache->used() == 4 * 1024);
        CHECK(bench.cache->problems() == "");
        // What was being filled: a disk may still write there.
        bench.cache->settle();
        CHECK(bench.cache->used() == 3 * 1024);
        CHECK(bench.cache->stats().free_lines == kLines - 4);
        CHECK(bench.cache->problems() == "");
    }

    TEST_CASE("a cache that shrinks keeps what is read most, and no byte of the rest") {
        Bench bench;
        std::vector<std::uint64_t> lines;
        for (std::uint64_t file = 1; file <= 8; ++file) {
            lines.push_back(bench.cache->add_file(file, kDataChunkBytes).value());
            REQUIRE(bench.fill(lines.back(), file, kDataChunkBytes, ChunkKind::kTried));
        }
        const Bytes begin = bench.tables.chunks_offset;
        // Of two in the part that goes one is pinned: nothing in front of it can be given.
        bench.pins.held.insert(lines[6]);
        CHECK(CacheEnd(*bench.cache).shrink_to(begin + 4 * kDataChunkBytes) ==
              begin + 7 * kDataChunkBytes);
        CHECK(bench.is_right(lines[6], 7, 0));
        CHECK(bench.cache->capacity() == 5 * kDataChunkBytes);
        CHECK(bench.cache->problems() == "");
        bench.pins.held.clear();
        CHECK(CacheEnd(*bench.cache).shrink_to(begin + 4 * kDataChunkBytes) ==
              begin + 4 * kDataChunkBytes);
        CHECK(bench.cache->used() <= 4 * kDataChunkBytes);
        CHECK(bench.cache->problems() == "");
        // A service that is started again has no more than that.
        bench.start();
        CacheEnd(*bench.cache).begin_with(begin + 4 * kDataChunkBytes);
        bench.cache->take_up(
            [&](auto line) { return std::find(lines.begin(), lines.end(), line) != lines.end(); });
        CHECK(bench.cache->capacity() == 4 * kDataChunkBytes);
        CHECK(bench.cache->problems() == "");
        CacheEnd(*bench.cache).grow_to(kArena);
        std::size_t filled = 0;
        for (std::uint64_t file = 1; file <= 8; ++file) {
            const auto line = lines[file - 1];
            if (bench.cache->state(line) == DataLineState::kReady) {
                CHECK(bench.is_right(line, file, 0));
            } else {
                REQUIRE(bench.fill(line, file, kDataChunkBytes, ChunkKind::kTried));
                ++filled;
            }
        }
        CHECK(filled >= 4);
        CHECK(bench.cache->used() == 8 * kDataChunkBytes);
        CHECK(bench.cache->problems() == "");
    }

    TEST_CASE("what came back soon after it had left counts as what more memory would have had") {
        Bench bench;
        std::vector<std::uint64_t> lines;
        // Ten of eight in turn: each leaves before it is read again.
        for (std::uint64_t file = 1; file <= 10; ++file) {
            lines.push_back(bench.cache->add_file(file, kDataChunkBytes).value());
        }
        for (int round = 0; round < 3; ++round) {
            for (std::uint64_t file = 1; file <= 10; ++file) {
                const auto line = lines[file - 1];
                if (bench.cache->state(line) == DataLineState::kReady) continue;
                REQUIRE(bench.fill(line, file, kDataChunkBytes, ChunkKind::kTried));
            }
            if (round == 0) CHECK(bench.cache->stats().refetched == 0);
        }
        CHECK(bench.cache->stats().refetched > 0);
        CHECK(bench.cache->stats().near > 0);
        CHECK(bench.cache->stats().near <= bench.cache->stats().refetched);
    }

    // Next to it a model: which file has which lines, and what readers have pinned. A pinned line's
    // bytes are looked at after each step.
    TEST_CASE("random stories never reuse what is pinned, and the account adds up") {
        for (unsigned seed = 0; seed < 20; ++seed) {
            CAPTURE(seed);
            std::mt19937 random(seed);
            Bench bench;
            std::map<std::uint64_t, ModelFile> files;                               // live ones
            std::set<std::uint64_t> filling;                                        // lines
            std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> pins;  // line -> file
            std::uint64_t last = 0;
            const auto some_file = [&] {
                return std::next(files.begin(),
                                 static_cast<std::ptrdiff_t>(random() % files.size()));
            };
            for (int turn = 0; turn < 700; ++turn) {
                CAPTURE(turn);
                const unsigned what = random() % 18;
                if (what < 3 || files.empty()) {
                    const Bytes bytes =
                        random() % 3 == 0 ? 1 + random() % (9 * kMiB) : 1 + random() % (200 * kKiB);
                    const auto first = bench.cache->add_file(last + 1, bytes);
                    if (first) files[++last] = {*first, bytes};
                } else if (what < 10) {
                    const auto& [file, facts] = *some_file();
                    const std::uint64_t chunk = random() % data_chunks(facts.bytes);
                    const std::uint64_t line = facts.first + chunk;
                    const auto kind = static_cast<ChunkKind>(1 + random() % 3);
                    if (bench.cache->state(line) == DataLineState::kEmpty) {
                        const auto room = bench.cache->begin(
                            line, data_chunk_length(facts.bytes, chunk), kind, random() % 2 == 0);
                        if (room) Bench::write(*room, file, chunk);
                        if (room) filling.insert(line);
                    } else {
                        bench.cache->touch(line);
                        if (random() % 4 == 0) bench.cache->set_kind(line, kind);
                    }
                } else if (what < 12 && !filling.empty()) {
                    const std::uint64_t line = *filling.begin();
                    filling.erase(filling.begin());
                    if (random() % 5 == 0) {
                        bench.cache->fail(line);
                    } else {
                        bench.cache->finish(line, 1);
                    }
                } else if (what == 12) {
                    const auto gone = some_file();
                    bench.cache->retire(gone->second.first, data_chunks(gone->second.bytes));
                    files.erase(gone);
                } else if (what == 13) {
                    const auto& [file, facts] = *some_file();
                    const std::uint64_t chunk = random() % data_chunks(facts.bytes);
                    const std::uint64_t line = facts.first + chunk;
                    if (bench.cache->state(line) == DataLineState::kReady && pins.size() < 12) {
                        pins[line] = {file, chunk};
                        bench.pins.held.insert(line);
                    }
                } else if (what == 14 && !pins.empty()) {
                    bench.pins.held.erase(pins.begin()->first);
                    pins.erase(pins.begin());
                } else if (what == 16) {
                    const Bytes chunks = kArena - bench.tables.chunks_offset;
                    const Bytes asked = bench.tables.chunks_offset + random() % chunks;
                    const Bytes before = CacheEnd(*bench.cache).end();
                    const Bytes end = CacheEnd(*bench.cache).shrink_to(asked);
                    CHECK(end <= before);
                    CHECK(end + kPageBytes > std::min(asked, before));
                    CHECK(end == CacheEnd(*bench.cache).end());
                    // The daemon has given it to others.
                    for (Bytes at = end; at < kArena; at += 509)
                        bench.memory.get()[at] ^= std::byte{0xff};
                } else if (what == 17) {
                    const Bytes more = kArena - CacheEnd(*bench.cache).end();
                    CacheEnd(*bench.cache)
                        .grow_to(CacheEnd(*bench.cache).end() + random() % (more + 1));
                } else {
                    const auto& [file, facts] = *some_file();
                    bench.cache->drop({facts.first});
                    bench.cache->sweep();
                }
                for (const auto& [line, name] : pins) {
                    REQUIRE(bench.is_right(line, name.first, name.second));
                }
                REQUIRE(bench.cache->problems() == "");
            }
            for (const auto& [file, facts] : files) {
                for (std::uint64_t chunk = 0; chunk < data_chunks(facts.bytes); ++chunk) {
                    const std::uint64_t line = facts.first + chunk;
                    if (bench.cache->state(line) != DataLineState::kReady) continue;
                    CHECK(bench.is_right(line, file, chunk));
                }
            }
        }
    }
}
