// ChunkCache: the published arena as its maker sees it: which line has which memory, what of it is
// there, and what goes when room is needed. docs/data.md.
//
// A line that shall leave goes through four steps, many lines at a time: its word says `leaving`;
// the pin pages of all readers are searched; pinned ones are `ready` again as they were; the others
// are `empty` with the next generation, and only then their bytes are given to others. A reader
// pins first and looks at the word then, so one of the two sees the other.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "fabricd/data/blocks/free_ranges.hpp"
#include "fabricd/data/blocks/leaving_order.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/shm/data_layout.hpp"

namespace fabricd {

using fabricshm::DataLineState;
using fabricshm::DataTables;
using fabricshm::Result;

/// The memory that a chunk of so many bytes takes.
Bytes chunk_room(Bytes bytes) noexcept;

/// The pins of all readers.
class PinPages {
  public:
    PinPages() = default;
    virtual ~PinPages() = default;
    PinPages(const PinPages&) = delete;
    PinPages& operator=(const PinPages&) = delete;

    /// Behind the stores to the words of `lines`, which are ascending: sets pinned[i] to 1 where a
    /// reader has lines[i]. False: not all pages are known now, and nothing may leave.
    virtual bool search(std::span<const std::uint64_t> lines, std::span<std::uint8_t> pinned) = 0;
};

/// Where chunks go that leave the memory: a disk. Each is whole, and may come back by another way.
class ChunkTier {
  public:
    ChunkTier() = default;
    virtual ~ChunkTier() = default;
    ChunkTier(const ChunkTier&) = delete;
    ChunkTier& operator=(const ChunkTier&) = delete;

    /// `bytes` are of chunk `chunk` of `file`, which was in memory as `kind`, and are given to
    /// others when this returns. It takes a copy or not, and does not wait.
    virtual void store(std::uint64_t file, std::uint32_t chunk, std::span<const std::byte> bytes,
                       std::uint32_t checksum, ChunkKind kind) = 0;
};

/// One thread at a time. The arena is borrowed.
class ChunkCache {
  public:
    struct Room {
        std::byte* into = nullptr;
        Bytes bytes = 0;
        Bytes room = 0;  // that may be written
    };
    struct Stats {
        std::array<Bytes, kChunkKinds> bytes{};  // that are there, by kind; kNone: being filled
        std::array<std::uint64_t, kChunkKinds> chunks{};
        std::uint64_t evicted = 0;
        std::uint64_t moved = 0;         // to make one hole of several
        std::uint64_t found_pinned = 0;  // that were to leave
        std::uint64_t gone = 0;          // whose memory readers still use
        std::uint64_t free_lines = 0;
        Bytes evicted_bytes = 0;
        Bytes refetched = 0;  // that had been here before
        Bytes near = 0;       // of them: would still be here with a quarter more memory
    };

    /// `tier`, where there is one, gets what leaves.
    ChunkCache(std::byte* arena, const DataTables& tables, PinPages& pins,
               ChunkTier* tier = nullptr);

    /// Empty tables, then the header.
    void format();
    /// Of an arena whose header is right: lines that are ready, and that `is_known` (by line)
    /// knows, go on; whatever else they say, or whose memory is another line's, too, is gone.
    void take_up(const std::function<bool(std::uint64_t line)>& is_known);

    /// Once nothing of the former cache's can write any more: the memory that it was filling when
    /// it ended is free. The kernel may end a read of a disk after the process that asked for it.
    void settle();

    /// Lines for a version of a file that has bytes: the first. Nothing: there are not as many free
    /// ones next to each other.
    std::optional<std::uint64_t> add_file(std::uint64_t file, Bytes bytes);
    /// That version is no more. Bytes that readers have pinned stay until they are not.
    void retire(std::uint64_t first, std::uint64_t count);

    DataLineState state(std::uint64_t line) const noexcept;
    /// What the line's fields say.
    fabricshm::DataExtent fields(std::uint64_t line) const noexcept;
    ChunkKind kind(std::uint64_t line) const noexcept { return order_.kind(line); }
    /// Of a line that is ready.
    std::span<const std::byte> bytes_of(std::uint64_t line) const noexcept;

    /// Memory for an empty line, which is filling from now on. Nothing: no room can be made now.
    /// What is wanted (`is_wanted`) by a reader may also take the place of what a plan keeps.
    std::optional<Room> begin(std::uint64_t line, std::uint32_t bytes, ChunkKind kind,
                              bool is_wanted);
    /// Its bytes are there; or not.
    void finish(std::uint64_t line, std::uint32_t checksum);
    void fail(std::uint64_t line);

    /// It was read.
    void touch(std::uint64_t line);
    /// Of a line that is filling or ready.
    void set_kind(std::uint64_t line, ChunkKind kind);
    /// Takes lines that are ready out, but for those that are pinned; how many went.
    std::size_t drop(std::vector<std::uint64_t> lines);
    /// Of a line that is ready: its bytes stay where they are until it is let go, as if a reader
    /// had pinned it.
    void hold(std::uint64_t line);
    void let_go(std::uint64_t line);
    /// `from` is ready and was never named to readers; `to` is empty, of a chunk with these bytes.
    /// `to` has them now, and is held if `from` was; `from` is free.
    void hand_over(std::uint64_t from, std::uint64_t to);
    /// Gives back what readers of versions that are gone have let go of. Call now and then.
    void sweep();

    Bytes capacity() const noexcept { return end_ - tables_.chunks_offset - withheld_.free(); }
    Bytes used() const noexcept { return capacity() - memory_.free(); }
    const DataTables& tables() const noexcept { return tables_; }
    const Stats& stats() const noexcept { return stats_; }

    /// What contradicts itself; "": nothing. O(lines). For tests.
    std::string problems() const;

  private:
    friend class CacheEnd;  // how much of the arena it uses
    struct Record {
        ChunkKind kind = ChunkKind::kNone;  // that it is to have once it is filled
        bool is_used = false;               // a file's
        bool is_filling = false;            // its memory is a silo's
        bool is_retired = false;
        std::uint32_t left_at = 0;  // MiB that had been evicted when it was; 0: never
    };

    fabricshm::DataLine& at(std::uint64_t line) const noexcept;
    void set_word(std::uint64_t line, DataLineState state, bool is_next) noexcept;
    bool take_up_line(std::uint64_t line, bool is_known);
    void enter(std::uint64_t line, ChunkKind kind);
    void leave_kind(std::uint64_t line);
    void release_memory(std::uint64_t line);
    void release_line(std::uint64_t line);

    std::optional<std::uint64_t> take_memory(Bytes bytes, ChunkKind kind);
    std::optional<std::uint64_t> make_room(Bytes bytes, ChunkKind kind, bool is_wanted);
    std::vector<std::uint64_t> without_pinned(std::vector<std::uint64_t> lines);
    Bytes evict(const std::vector<std::uint64_t>& lines);
    bool open_window(Bytes bytes);
    std::optional<std::uint64_t> cheapest_window() const;
    void move_or_evict(std::uint64_t line);

    std::byte* arena_;
    DataTables tables_;
    PinPages& pins_;
    ChunkTier* tier_;
    Bytes end_;         // behind it nothing is used
    Bytes wanted_end_;  // what is let go of behind it is used no more
    FreeRanges memory_;
    FreeRanges withheld_{0, 0};  // what is free and about to be given back
    FreeRanges lines_;
    std::vector<Record> records_;                       // by line
    std::map<std::uint64_t, std::uint64_t> by_offset_;  // memory that is taken -> its line
    LeavingOrder order_;
    std::vector<std::pair<std::uint64_t, Bytes>> unsettled_;  // see settle(): offsets and bytes
    std::unordered_set<std::uint64_t> held_;
    std::vector<std::uint64_t> gone_;  // lines whose bytes may be pinned
    Stats stats_;
};

}  // namespace fabricd
