// S113: which part of each batch should every rank take, and what has to move for it? Pure.
//
// Minimised is F = sum over i, j of D_ij (1 + L_j) / C_j: bytes that i sends to j, weighed by how
// slowly j works them off. With samples in place of bytes F has a closed-form optimum: shares in
// proportion to what a rank really does.

#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace fabricd {

/// b_i = C_i (1 + sum of f) / sum of C - f_i: the shares with which all ranks end together when a
/// step takes each (f_i + b_i) / C_i. `speeds` in samples per second when computing; `fixed` the
/// part of a batch that a rank's fixed costs are worth (0: none). Sums to 1; a rank of speed 0 gets
/// 0. Speeds are measured with what others on the device take away, so that L is in C already.
/// `floor` (below 1) is a part of the even share that no rank with a speed falls below: a rank that
/// gets no work is never measured again. Where that alone is too much for a rank, the others end
/// together.
/// Nothing when an input is unusable or no rank has a speed.
std::optional<std::vector<double>> balanced_shares(std::span<const double> speeds,
                                                   std::span<const double> fixed, double floor);

/// How much of the batch changes hands: half the sum of the differences.
double moved_part(std::span<const double> before, std::span<const double> after) noexcept;

}  // namespace fabricd
