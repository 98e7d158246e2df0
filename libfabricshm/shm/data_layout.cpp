#include "libfabricshm/shm/data_layout.hpp"

#include <cstring>

#include "libfabricshm/base/crc32c.hpp"

namespace fabricshm {

namespace {

// The fields between magic and checksum, as they lie in the header.
struct Fields {
    std::uint32_t version;
    std::uint32_t line_bytes;
    std::uint64_t generation;
    std::uint64_t lines_offset;
    std::uint64_t lines;
    std::uint64_t chunks_offset;
    std::uint64_t arena_bytes;
    std::uint64_t chunk_bytes;
};
static_assert(sizeof(Fields) == offsetof(DataHeader, checksum) - offsetof(DataHeader, version));

constexpr std::size_t kFieldsOffset = offsetof(DataHeader, version);

// The chunks begin on a huge page.
constexpr Bytes kChunksAlign = 2 * kMiB;

bool is_inside(const DataTables& tables, Bytes mapped) noexcept {
    if (tables.generation == 0 || tables.lines == 0 || tables.arena_bytes > mapped) return false;
    if (tables.lines_offset < sizeof(DataHeader) || tables.lines_offset % kCacheLine != 0) {
        return false;
    }
    // Divided, not multiplied: the count is of another process.
    if (tables.chunks_offset > tables.arena_bytes || tables.chunks_offset % kDataAlign != 0) {
        return false;
    }
    return tables.lines_offset <= tables.chunks_offset &&
           tables.lines <= (tables.chunks_offset - tables.lines_offset) / sizeof(DataLine);
}

}  // namespace

Result<DataTables> plan_data_tables(std::uint64_t generation, std::uint64_t lines,
                                    Bytes arena_bytes) {
    DataTables tables;
    tables.generation = generation;
    tables.lines_offset = sizeof(DataHeader);
    tables.lines = lines;
    tables.arena_bytes = arena_bytes;
    const bool fits = lines < arena_bytes / sizeof(DataLine);
    if (fits) {
        tables.chunks_offset =
            round_up(tables.lines_offset + lines * sizeof(DataLine), kChunksAlign);
    }
    // One chunk at least.
    const bool is_possible = fits && is_inside(tables, arena_bytes) &&
                             arena_bytes - tables.chunks_offset >= kDataChunkBytes;
    if (!is_possible) return Error{Errc::kInvalid, 0, "plan tables of the data cache"};
    return tables;
}

void write_data_header(std::byte* arena, const DataTables& tables) noexcept {
    const Fields fields{kDataVersion, sizeof(DataLine),     tables.generation,  tables.lines_offset,
                        tables.lines, tables.chunks_offset, tables.arena_bytes, kDataChunkBytes};
    auto& header = *reinterpret_cast<DataHeader*>(arena);
    std::memcpy(arena + kFieldsOffset, &fields, sizeof fields);
    header.checksum = crc32c(&fields, sizeof fields);
    // Release: a reader that gets the magic by an acquire load has fields and lines.
    header.magic.store(kDataMagic, std::memory_order_release);
}

void erase_data_header(std::byte* arena) noexcept {
    auto& header = *reinterpret_cast<DataHeader*>(arena);
    // Sequentially consistent: no store to the fields comes before it.
    header.magic.store(0, std::memory_order_seq_cst);
}

Result<DataTables> read_data_header(const std::byte* arena, Bytes mapped) {
    constexpr const char* kStep = "read header of the data cache";
    if (mapped < sizeof(DataHeader)) return Error{Errc::kCorrupt, 0, kStep};
    const auto& header = *reinterpret_cast<const DataHeader*>(arena);
    const std::uint64_t magic = header.magic.load(std::memory_order_acquire);
    if (magic == 0) return Error{Errc::kNotFound, 0, kStep};
    if (magic != kDataMagic) return Error{Errc::kCorrupt, 0, kStep};
    Fields fields;
    std::memcpy(&fields, arena + kFieldsOffset, sizeof fields);
    const std::uint64_t checksum = header.checksum;
    if (checksum != crc32c(&fields, sizeof fields)) return Error{Errc::kCorrupt, 0, kStep};
    if (fields.version != kDataVersion) return Error{Errc::kVersion, 0, kStep};
    const DataTables tables{fields.generation, fields.lines_offset, fields.lines,
                            fields.chunks_offset, fields.arena_bytes};
    const bool is_right = fields.line_bytes == sizeof(DataLine) &&
                          fields.chunk_bytes == kDataChunkBytes && is_inside(tables, mapped);
    if (!is_right) return Error{Errc::kCorrupt, 0, kStep};
    return tables;
}

std::optional<DataExtent> read_data_line(const DataLine& line, const DataTables& tables) noexcept {
    const DataExtent extent{line.offset, line.bytes, line.checksum, line.file, line.chunk};
    const bool is_inside = extent.offset >= tables.chunks_offset &&
                           extent.offset <= tables.arena_bytes &&
                           extent.bytes <= tables.arena_bytes - extent.offset &&
                           extent.bytes <= kDataChunkBytes && extent.offset % kDataAlign == 0;
    if (!is_inside) return std::nullopt;
    return extent;
}

}  // namespace fabricshm
