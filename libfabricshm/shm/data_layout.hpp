// The arena that a data cache publishes: a header, a table of lines, and the memory that these
// point into. docs/data.md says how it is used, docs/shm_layout.md where each field is.
//
//   header | lines, 64 bytes each | memory of the chunks
//
// The cache alone writes; readers have it mapped for reading. A line is one chunk of one version of
// one file. Its word says what is there now:
//
//   empty -> filling -> ready -> leaving -> empty     with the next generation, when no reader has
//                       ^           |                 pinned it; else ready again, as it was
//                       +-----------+
//   any -> gone                                       the version is no more; for ever, until the
//                                                     line is another file's
//
// A reader pins a line whose word is ready (pin_page.hpp), and reads its fields between the pin and
// the use: they change only while the word is neither ready nor leaving, or when no reader has
// pinned the line. The bytes of a pinned line stay even when it becomes gone.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricshm {

inline constexpr std::uint64_t kDataMagic = 0x3141544144424146;  // "FABDATA1"
inline constexpr std::uint32_t kDataVersion = 1;
inline constexpr Bytes kDataChunkBytes = 4 * kMiB;  // of a file in one line, at most
inline constexpr Bytes kDataAlign = 64;             // of a chunk in the memory

struct DataHeader {
    std::atomic<std::uint64_t> magic;  // stored last
    std::uint32_t version;
    std::uint32_t line_bytes;
    std::uint64_t generation;  // of the tables; another one: no line of before means anything
    std::uint64_t lines_offset;
    std::uint64_t lines;
    std::uint64_t chunks_offset;
    std::uint64_t arena_bytes;
    std::uint64_t chunk_bytes;
    std::uint64_t checksum;  // CRC-32C of the fields between magic and this
    char pad_[4096 - 72];
};
static_assert(sizeof(DataHeader) == 4096);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

enum class DataLineState : std::uint8_t {
    kEmpty = 0,
    kFilling = 1,
    kReady = 2,
    kLeaving = 3,
    kGone = 4,
};

struct alignas(kCacheLine) DataLine {
    std::atomic<std::uint64_t> word;  // generation << 8 | DataLineState
    std::uint64_t offset;             // from the arena's start, a multiple of kDataAlign
    std::uint32_t bytes;
    std::uint32_t checksum;  // CRC-32C of the bytes
    std::uint64_t file;      // which version of which file; rises for ever, never 0
    std::uint32_t chunk;     // number within the file
    std::uint32_t flags;     // 0
    std::uint64_t reserved[2];
};
static_assert(sizeof(DataLine) == 64);

constexpr std::uint64_t data_word(std::uint64_t generation, DataLineState state) noexcept {
    return generation << 8 | static_cast<std::uint64_t>(state);
}
constexpr DataLineState data_state(std::uint64_t word) noexcept {
    return static_cast<DataLineState>(word & 0xff);
}
constexpr std::uint64_t data_generation(std::uint64_t word) noexcept {
    return word >> 8;
}

/// Where the tables are: the header as a copy, checked.
struct DataTables {
    std::uint64_t generation = 0;
    std::uint64_t lines_offset = 0;
    std::uint64_t lines = 0;
    std::uint64_t chunks_offset = 0;
    std::uint64_t arena_bytes = 0;

    bool operator==(const DataTables&) const = default;
};

/// The tables of an arena of `arena_bytes` with `lines` lines. kInvalid: nothing is left for
/// chunks, or there is no line.
Result<DataTables> plan_data_tables(std::uint64_t generation, std::uint64_t lines,
                                    Bytes arena_bytes);

/// Writes the header; the lines are the caller's before. By the cache alone.
void write_data_header(std::byte* arena, const DataTables& tables) noexcept;
/// Makes the arena one without tables: before they are written again.
void erase_data_header(std::byte* arena) noexcept;

/// The tables of the arena at `arena`, of which `mapped` bytes are mapped. Everything that a reader
/// follows later lies inside. kNotFound: no cache has written its header yet; kVersion; kCorrupt.
Result<DataTables> read_data_header(const std::byte* arena, Bytes mapped);

/// Line `line` of an arena; below `tables.lines`.
inline DataLine& data_line(std::byte* arena, const DataTables& tables,
                           std::uint64_t line) noexcept {
    return reinterpret_cast<DataLine*>(arena + tables.lines_offset)[line];
}
inline const DataLine& data_line(const std::byte* arena, const DataTables& tables,
                                 std::uint64_t line) noexcept {
    return reinterpret_cast<const DataLine*>(arena + tables.lines_offset)[line];
}

/// The fields of a line as a copy.
struct DataExtent {
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    std::uint32_t checksum = 0;
    std::uint64_t file = 0;
    std::uint32_t chunk = 0;
};

/// By a reader that has pinned the line: its fields, when they point into the memory of the chunks.
std::optional<DataExtent> read_data_line(const DataLine& line, const DataTables& tables) noexcept;

/// Of a file: how many lines it has.
constexpr std::uint64_t data_chunks(Bytes bytes) noexcept {
    return bytes / kDataChunkBytes + (bytes % kDataChunkBytes != 0 ? 1 : 0);
}
/// How many bytes chunk `chunk` of a file of `bytes` has; below data_chunks().
constexpr std::uint32_t data_chunk_length(Bytes bytes, std::uint64_t chunk) noexcept {
    const Bytes left = bytes - chunk * kDataChunkBytes;
    return static_cast<std::uint32_t>(left < kDataChunkBytes ? left : kDataChunkBytes);
}

// What a reader writes into the notes of its pin page: each a word that it alone stores. Input for
// the cache.
inline constexpr std::size_t kDataNoteHits = 0;
inline constexpr std::size_t kDataNoteMisses = 1;
inline constexpr std::size_t kDataNoteStallNs = 2;
inline constexpr std::size_t kDataNoteBytesRead = 3;
inline constexpr std::size_t kDataNoteCopies = 4;    // for want of slots
inline constexpr std::size_t kDataNotePosition = 5;  // how many entries the ring had in all
inline constexpr std::size_t kDataNoteRing = 6;      // line + 1 of what was viewed last
inline constexpr std::size_t kDataNoteRingWords = 496;

}  // namespace fabricshm
