// S212: in which order should data be placed? Pure.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fabricd {

struct PriorityItem {
    std::uint64_t id = 0;
    double until_needed_s = 0;  // 0: now; a trainer that says nothing needs it now
    double bytes = 0;
};

struct PriorityWeights {
    double urgency = 0.7;  // alpha
    double size = 0.3;     // beta; the two are scaled to sum 1
    double tau_s = 1;      // urgency is one half when an item is needed in so long
    bool large_first = false;
};

/// P = alpha U + beta S, from 0 to 1: U = 1 / (1 + time until needed / tau), S = 1 - size / largest
/// (small first) or size / largest. Nothing when an input is unusable.
std::optional<double> priority_of(const PriorityItem& item, double largest_bytes,
                                  const PriorityWeights& weights);

/// The indices of `items`, the most urgent first; equal ones by id, so that the order does not
/// depend on how they came. Items with unusable numbers are left out.
std::vector<std::size_t> priority_list(std::span<const PriorityItem> items,
                                       const PriorityWeights& weights);

}  // namespace fabricd
