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

/// F for `bytes`, a row per sender and a column per receiver. Nothing when an input is unusable or
/// a node that receives something has no speed.
std::optional<double> flow_cost(std::span<const double> bytes, std::span<const double> speeds,
                                std::span<const double> loads);

/// b_i = (C_i / (1 + L_i)) / sum over k: the shares with which all ranks end together. `speeds` in
/// samples per second when computing; `loads` the share of the device that others keep busy, on top
/// of what the speed was measured under. Sums to 1; a rank of speed 0 gets 0.
/// `floor` (below 1) is a part of the even share that nobody with a speed falls below: a rank that
/// gets no work is never measured again.
/// Nothing when an input is unusable or nobody has a speed.
std::optional<std::vector<double>> balanced_shares(std::span<const double> speeds,
                                                   std::span<const double> loads, double floor);

/// `part` of the batch's data goes from one node to another.
struct FlowMove {
    std::size_t from = 0;
    std::size_t to = 0;
    double part = 0;
};

/// The cheapest transport from the shares of before to the new ones. `cost` is the price per part
/// from row to column (seconds per byte, say), empty when all pairs cost the same. Exact by
/// shortest augmenting paths: O(n^3) with costs, O(n) without. Both lists sum to 1; what rounding
/// leaves is dropped. Empty when an input is unusable.
std::vector<FlowMove> cheapest_transport(std::span<const double> before,
                                         std::span<const double> after,
                                         std::span<const double> cost);

/// How much of the batch changes hands: half the sum of the differences.
double moved_part(std::span<const double> before, std::span<const double> after) noexcept;

}  // namespace fabricd
