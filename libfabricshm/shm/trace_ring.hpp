// TraceRing: the last operations of one session, one record each, for `fabricctl trace`.
// docs/tracing.md, docs/shm_layout.md.
//
//   magic, version, head, lost | records (4,096 x 64 bytes)
//
// Record n lies at n % 4,096: a writer never waits for a reader, which counts what was overwritten
// before it came. The file is made by the daemon when a trace begins; the session writes it, and to
// the daemon every word of it is input. What a rank wrote before it died is still there.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/seqlock.hpp"

namespace fabricshm {

inline constexpr std::uint64_t kTraceMagic = 0x3143415254424146;
inline constexpr std::uint32_t kTraceVersion = 1;
inline constexpr std::uint64_t kTraceRecords = 4096;

/// How the bytes of an operation went. The first ones are those of Algorithm.
enum class TraceWay : std::uint8_t {
    kNone = 0,  // it failed before that was decided, or has no other rank
    kFlat = 1,
    kDirect = 2,
    kRing = 3,
    kStaged = 4,
    kHost = 5,
    kTiny = 6,
    kSlots = 7,
    kTree = 8,
};
inline constexpr int kTraceWays = 9;
const char* name_of(TraceWay way) noexcept;

/// One operation as one rank had it. Times are of CLOCK_MONOTONIC.
struct TraceRecord {
    std::uint64_t group_id;
    std::uint64_t epoch;  // how many operations of the group came before: alike on all ranks
    std::uint64_t bytes;  // of the largest part; 0: a barrier
    std::int64_t begin_ns;
    std::int64_t arrive_ns;  // its longest wait for others ended; `begin_ns`: it hardly waited
    std::int64_t end_ns;
    std::uint8_t kind;  // as Kind of collective/kinds.hpp
    TraceWay way;
    std::uint16_t rank;
    std::uint16_t world;
    std::uint16_t failed;  // 0, or an Errc
};
inline constexpr std::size_t kTraceWords = sizeof(TraceRecord) / 8;
static_assert(kTraceWords == 7 && alignof(TraceRecord) == 8);

struct TraceSlot {
    SharedWord sequence;  // of record n: 2n + 1 while it is written, 2n + 2 when it is there
    SharedWord record[kTraceWords];
};
static_assert(sizeof(TraceSlot) == kCacheLine);

struct TraceRing {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t reserved;
    SharedWord head;  // twice the records written; odd: one is being written
    SharedWord lost;  // that were not written, since another thread was at it
    char pad_[32];
    TraceSlot slots[kTraceRecords];
};
static_assert(offsetof(TraceRing, head) == 16 && offsetof(TraceRing, slots) == kCacheLine);
inline constexpr Bytes kTraceFileBytes = round_up(sizeof(TraceRing), 4096);

/// Makes an empty ring of zeros.
void format_trace(std::byte* file) noexcept;

/// Whether the bytes are a ring of this version: kCorrupt or kVersion. For the session, once.
Result<void> check_trace(const std::byte* file) noexcept;

/// Adds a record; some 15 ns. Any thread of the session; one that meets another in here gives up
/// after some tries, and counts the record as lost.
void write_trace(std::byte* file, const TraceRecord& record) noexcept;

/// Reads a ring from where it stopped the last time. Used by one thread; takes as long as what is
/// new, a whole ring at most, whatever a hostile session writes meanwhile.
class TraceReader {
  public:
    explicit TraceReader(const std::byte* file) noexcept : file_(file) {}

    /// Appends what came since the last call, tamed, in the order in which it was written.
    void read(std::vector<TraceRecord>& records);

    /// Records that were overwritten before they were read, or not written.
    std::uint64_t lost() const noexcept { return lost_ + not_written_; }
    /// Records that made no sense, and were left out.
    std::uint64_t senseless() const noexcept { return senseless_; }

  private:
    const std::byte* file_;
    std::uint64_t next_ = 0;
    std::uint64_t lost_ = 0;
    std::uint64_t not_written_ = 0;
    std::uint64_t senseless_ = 0;
};

/// False for what no honest session writes: afterwards rank and world belong together, the kind is
/// below `kinds`, and begin, arrival and end follow each other.
bool makes_sense(const TraceRecord& record, int kinds) noexcept;

}  // namespace fabricshm
