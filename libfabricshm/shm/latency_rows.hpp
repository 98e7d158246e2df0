// LatencyRows: how long the collectives of a session took, as histograms: a row for each kind of
// operation and size class. docs/telemetry.md.
//
//   row = counts of 24 buckets with an end, and of all that took longer | sum of the times
//
// The buckets double from 250 ns on: small enough for an allreduce of 8 bytes, and the last end is
// 2 s. They are fixed, so that rows of all sessions of all hosts add up.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace fabricshm {

inline constexpr int kLatencyKinds = 16;  // a few more than there are kinds of operations
inline constexpr int kLatencySizes = 4;
inline constexpr int kLatencyRows = kLatencyKinds * kLatencySizes;
inline constexpr int kLatencyEnds = 24;  // buckets with an end

/// Counters that only rise.
struct LatencyRow {
    std::uint64_t counts[kLatencyEnds + 1];
    std::uint64_t sum_ns;
};
inline constexpr std::size_t kLatencyWords = sizeof(LatencyRow) / 8;
static_assert(kLatencyWords == kLatencyEnds + 2 && kLatencyRows == 64);

/// All rows of a session: 13 KiB, of which those without a bit in `used` are zeros.
struct LatencyImage {
    std::uint64_t used;                     // bit i: there is something in row i
    std::uint64_t failures[kLatencyKinds];  // operations that ended with an error, in no row
    LatencyRow rows[kLatencyRows];
};

/// The end of a bucket, which belongs to it.
constexpr std::int64_t latency_end_ns(int bucket) noexcept {
    return std::int64_t{250} << bucket;
}

/// The bucket of an operation that took so long; some 2 ns.
constexpr int latency_bucket(std::int64_t took_ns) noexcept {
    if (took_ns <= 250) return 0;
    const int bucket = std::bit_width(static_cast<std::uint64_t>(took_ns - 1) / 250);
    return bucket < kLatencyEnds ? bucket : kLatencyEnds;
}

/// The size class of an operation with so many bytes in its largest part.
constexpr int latency_size(std::uint64_t bytes) noexcept {
    if (bytes < std::uint64_t{1} << 10) return 0;
    if (bytes < std::uint64_t{64} << 10) return 1;
    return bytes < std::uint64_t{4} << 20 ? 2 : 3;
}
inline constexpr const char* kLatencySizeNames[kLatencySizes] = {"0-1KiB", "1KiB-64KiB",
                                                                 "64KiB-4MiB", "4MiB+"};

/// The kinds by number, as collective/kinds.hpp has them, which asserts it. Messages have no rows.
inline constexpr const char* kLatencyKindNames[] = {
    "allreduce",  "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter",
    "all_to_all", "barrier",        nullptr,      nullptr,     "scan",   "exscan"};

/// `kind` as Kind of collective/kinds.hpp, below kLatencyKinds.
constexpr int latency_row(int kind, std::uint64_t bytes) noexcept {
    return kind * kLatencySizes + latency_size(bytes);
}

/// Calls `take` with the number of each bit that is set.
template <typename Take>
constexpr void for_each_bit(std::uint64_t bits, const Take& take) {
    for (; bits != 0; bits &= bits - 1) take(std::countr_zero(bits));
}

}  // namespace fabricshm
