#include "libfabricshm/shm/data_layout.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "libfabricshm/base/crc32c.hpp"

using namespace fabricshm;

namespace {

constexpr Bytes kArena = 16 * kMiB;

struct alignas(4096) Page {
    std::byte bytes[4096];
};

struct Arena {
    std::vector<Page> pages = std::vector<Page>(1);  // the header alone is read
    std::byte* data() { return pages[0].bytes; }
    DataHeader& header() { return *reinterpret_cast<DataHeader*>(data()); }
};

DataTables usual() {
    return plan_data_tables(7, 1000, kArena).value();
}

}  // namespace

TEST_SUITE("shm.data_layout") {
    TEST_CASE("a header is read as it was written, and not before") {
        Arena arena;
        CHECK(read_data_header(arena.data(), kArena).error().code == Errc::kNotFound);
        write_data_header(arena.data(), usual());
        const auto tables = read_data_header(arena.data(), kArena);
        REQUIRE(tables.ok());
        CHECK(*tables == usual());
        CHECK(tables->chunks_offset == 2 * kMiB);
        // The mapping may be larger, never smaller.
        CHECK(read_data_header(arena.data(), 2 * kArena).ok());
        CHECK(read_data_header(arena.data(), kArena - 1).error().code == Errc::kCorrupt);
        CHECK(read_data_header(arena.data(), 100).error().code == Errc::kCorrupt);
        erase_data_header(arena.data());
        CHECK(read_data_header(arena.data(), kArena).error().code == Errc::kNotFound);
    }

    TEST_CASE("tables that leave no room for a chunk, or have no line, are not planned") {
        CHECK_FALSE(plan_data_tables(1, 0, kArena).ok());
        CHECK_FALSE(plan_data_tables(0, 10, kArena).ok());
        CHECK_FALSE(plan_data_tables(1, 10, 2 * kMiB + kDataChunkBytes - 1).ok());
        CHECK(plan_data_tables(1, 10, 2 * kMiB + kDataChunkBytes).ok());
        CHECK_FALSE(plan_data_tables(1, kArena / 64, kArena).ok());
        CHECK_FALSE(plan_data_tables(1, ~std::uint64_t{0}, kArena).ok());
    }

    TEST_CASE("a header of any bytes with a right checksum leads nowhere outside") {
        std::mt19937_64 random(1);
        int accepted = 0;
        for (int turn = 0; turn < 20'000; ++turn) {
            Arena arena;
            write_data_header(arena.data(), usual());
            constexpr std::size_t kFirst = offsetof(DataHeader, version);
            constexpr std::size_t kEnd = offsetof(DataHeader, checksum);
            const std::size_t place = kFirst + random() % (kEnd - kFirst);
            const int kind = static_cast<int>(random() % 3);
            if (kind == 0) arena.data()[place] = static_cast<std::byte>(random());
            if (kind == 1) arena.data()[place] ^= std::byte{1};
            const std::uint64_t word = random() >> random() % 64;
            if (kind == 2) std::memcpy(arena.data() + (place & ~std::size_t{7}), &word, 8);
            arena.header().checksum = crc32c(arena.data() + kFirst, kEnd - kFirst);
            arena.header().magic.store(kDataMagic);
            const auto tables = read_data_header(arena.data(), kArena);
            if (!tables.ok()) continue;
            ++accepted;
            CHECK(tables->lines >= 1);
            CHECK(tables->lines_offset >= 4096);
            CHECK(tables->lines <= kArena / 64);
            CHECK(tables->lines_offset + tables->lines * 64 <= tables->chunks_offset);
            CHECK(tables->chunks_offset <= tables->arena_bytes);
            CHECK(tables->arena_bytes <= kArena);
        }
        CHECK(accepted > 0);
    }

    TEST_CASE("a line whose bytes lie outside of the chunks is not followed") {
        const DataTables tables = usual();
        DataLine line{};
        line.offset = tables.chunks_offset;
        line.bytes = 100;
        line.file = 5;
        REQUIRE(read_data_line(line, tables));
        CHECK(read_data_line(line, tables)->file == 5);
        const auto accepts = [&](std::uint64_t offset, std::uint32_t bytes) {
            line.offset = offset;
            line.bytes = bytes;
            return read_data_line(line, tables).has_value();
        };
        CHECK(accepts(kArena - 64, 64));
        CHECK_FALSE(accepts(kArena - 64, 65));
        CHECK_FALSE(accepts(tables.chunks_offset - 64, 64));
        CHECK_FALSE(accepts(tables.chunks_offset + 1, 64));
        CHECK_FALSE(accepts(tables.chunks_offset, kDataChunkBytes + 1));
        CHECK_FALSE(accepts(~std::uint64_t{63}, 64));
    }

    TEST_CASE("a file has a line for each 4 MiB that it begins") {
        CHECK(data_chunks(0) == 0);
        CHECK(data_chunks(1) == 1);
        CHECK(data_chunks(kDataChunkBytes) == 1);
        CHECK(data_chunks(kDataChunkBytes + 1) == 2);
        CHECK(data_chunks(~std::uint64_t{0}) == 1 + ~std::uint64_t{0} / kDataChunkBytes);
        CHECK(data_chunk_length(kDataChunkBytes + 1, 0) == kDataChunkBytes);
        CHECK(data_chunk_length(kDataChunkBytes + 1, 1) == 1);
        CHECK(data_state(data_word(9, DataLineState::kLeaving)) == DataLineState::kLeaving);
        CHECK(data_generation(data_word(9, DataLineState::kLeaving)) == 9);
    }
}
