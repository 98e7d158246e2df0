// LeavingOrder: which chunks leave the memory next.

#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "fabricd/data/blocks/s3_fifo.hpp"

namespace fabricd {

/// Why a chunk is in memory, which decides when it goes.
enum class ChunkKind : std::uint8_t {
    kNone,
    kTried,    // read without a plan: S3-FIFO decides
    kPassing,  // fetched ahead of its use by a plan; goes when it was read
    kKept,     // of a plan, to the end
};
inline constexpr std::size_t kChunkKinds = 4;

/// The rules alone: lines and sizes, no bytes. One thread at a time.
class LeavingOrder {
  public:
    explicit LeavingOrder(std::uint64_t lines) : entries_(lines) {}

    /// A line that has none.
    void add(std::uint64_t line, Bytes bytes, ChunkKind kind);
    void remove(std::uint64_t line);
    ChunkKind kind(std::uint64_t line) const noexcept { return entries_[line].kind; }

    /// It was read.
    void touch(std::uint64_t line);

    /// What goes next, as much as `bytes`: what has passed; and what was read without a plan. Where
    /// these are less than a reader waits for (`wanted`, of `bytes`) also what is kept, and what
    /// passes: that is the next to be read, and has been fetched for nothing if it goes. Each is
    /// then remove()d, or stays(): its readers have it pinned.
    std::vector<std::uint64_t> next(Bytes bytes, Bytes wanted);
    void stays(std::uint64_t line);

  private:
    struct Entry {
        ChunkKind kind = ChunkKind::kNone;
        Bytes bytes = 0;
        std::uint64_t turn = 0;  // the lower, the older
    };
    using Queue = std::map<std::uint64_t, std::uint64_t>;  // by turn

    static void take(const Queue& from, const std::vector<Entry>& entries, Bytes wanted,
                     Bytes& found, std::vector<std::uint64_t>& lines);

    std::vector<Entry> entries_;  // by line
    S3Fifo tried_{kNoLimit};
    Queue passing_;  // not read yet
    Queue passed_;
    Queue kept_;
    std::uint64_t last_turn_ = 0;

    static constexpr Bytes kNoLimit = Bytes{1} << 62;
};

}  // namespace fabricd
