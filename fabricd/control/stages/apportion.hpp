// Dividing a whole among several: by weight, under caps, in whole units. Pure; what the stages that
// hand out bytes, shares and tasks have in common. The sum is always preserved.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fabricd {

/// `weights` scaled to sum 1. Weights that are unusable count as 0; without any weight at all
/// everybody gets the same.
std::vector<double> shares_of(std::span<const double> weights);

/// Divides `units` in proportion to `weights` by largest remainder: no part is further than one
/// unit from its exact part, and the units sum up. Equal remainders go to the lower index, so that
/// the same input always gives the same answer.
std::vector<std::uint64_t> whole_units(std::uint64_t units, std::span<const double> weights);

/// Divides `total` in proportion to `weights`, but gives no part more than its cap; what a cap cuts
/// off goes to those below theirs, again by weight (water-filling), and to those without weight
/// last. Sums to min(total, sum of caps).
std::vector<double> fill_under_caps(double total, std::span<const double> weights,
                                    std::span<const double> caps);

/// The same in whole units: `total` and the caps are rounded down, and the parts sum to exactly
/// min(total, sum of caps). For numbers below 2^53.
std::vector<double> whole_under_caps(double total, std::span<const double> weights,
                                     std::span<const double> caps);

}  // namespace fabricd
