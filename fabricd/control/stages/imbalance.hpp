// S112: how much device time is lost to waiting for the slowest? Pure.

#pragma once

#include <optional>
#include <span>

namespace fabricd {

struct Imbalance {
    double index = 0;      // I = 1 - mean(c) / max(c): 0 balanced, towards 1 all wait for one
    double variation = 0;  // standard deviation of c over its mean
};

/// From the compute time per step of each rank, in seconds (any unit: both results have none).
/// Nothing when there is no rank or a time is unusable; no rank computing is balanced.
std::optional<Imbalance> imbalance_of(std::span<const double> compute_s);

}  // namespace fabricd
