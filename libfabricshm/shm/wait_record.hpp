// WaitRecord: a wait of a session that has become long, as its telemetry page shows it.
// docs/shm_layout.md, docs/telemetry.md.
//
// A rank that waits for seconds says so here, and nothing is written before: operations that go on
// cost nothing. Written by one session, read by the daemon, to which every word of it is input.

#pragma once

#include <cstddef>
#include <cstdint>

#include "libfabricshm/base/world_max.hpp"

namespace fabricshm {

/// Waits that a session shows at the same time: by its threads, and of several groups.
inline constexpr int kWaitsShown = 8;

/// Ranks that a record can name: all of the largest group, one bit each.
inline constexpr std::size_t kLateWords = kWorldMax / 64;

/// The largest time and count that a reader of the page believes, 146 years and 4 EiB: the sum of
/// two stays in range.
inline constexpr std::int64_t kBelievedNs = std::int64_t{1} << 62;
inline constexpr std::uint64_t kBelievedCount = std::uint64_t{1} << 62;

/// One wait. `kind` is a word such as "allreduce", zeros behind it.
struct WaitRecord {
    std::uint64_t arena_id;  // with the next one: which group. 0: no record
    std::uint64_t group_id;
    std::int64_t began_ns;  // CLOCK_MONOTONIC
    std::uint64_t bytes;    // of the largest part; 0: a barrier or a message
    std::int32_t rank;      // that waits
    std::int32_t world;
    char kind[16];
    std::uint64_t late[kLateWords];  // bit r % 64 of word r / 64: rank r has not come
};

/// A record, and in whose page it was.
struct SessionWait {
    std::uint64_t session_id = 0;
    WaitRecord record{};
};

inline constexpr std::size_t kWaitWords = kWaitsShown * sizeof(WaitRecord) / 8;
static_assert(sizeof(WaitRecord) == 88);

/// Copies a word into `kind`, cut to what fits.
void set_kind(WaitRecord& record, const char* kind) noexcept;

inline void add_late(WaitRecord& record, int rank) noexcept {
    record.late[rank / 64] |= std::uint64_t{1} << (rank % 64);
}
inline bool is_late(const WaitRecord& record, int rank) noexcept {
    return (record.late[rank / 64] >> (rank % 64) & 1) != 0;
}

/// Whatever a hostile session wrote, afterwards the record is either of no group or one in which
/// rank and world belong together, at least one other rank of the world is late and none beyond it,
/// the time is not negative and the kind is of lower-case letters and '_'.
void tame(WaitRecord& record) noexcept;

}  // namespace fabricshm
