// S211: how fast is the way between two nodes? A record of the last timed peer reads. Pure.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace fabricd {

/// One timed read, or the sum of a window's.
struct PathReading {
    double bytes = 0;
    double seconds = 0;
};

/// What is known of a path. Tails are the bad ones: 99 of 100 readings were better.
struct PathRecord {
    double bandwidth = 0;       // bytes per second, median of the large reads
    double bandwidth_tail = 0;  // the 1 % quantile
    double latency = 0;         // seconds, median of the small reads; 0 when there were none
    double latency_tail = 0;    // the 99 % quantile
    std::size_t readings = 0;
};

/// A read up to this size is dominated by latency, a larger one by bandwidth.
inline constexpr double kSmallReadBytes = 4096;

/// The record of `readings`, in any order. Nothing when no reading is usable: a path that was never
/// measured is not taken for a fast or a slow one.
std::optional<PathRecord> path_record(const std::vector<PathReading>& readings);

}  // namespace fabricd
