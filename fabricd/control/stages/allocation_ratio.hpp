// S411 to S413: in which ratio should nodes be given data? Pure.

#pragma once

#include <optional>
#include <span>
#include <vector>

namespace fabricd {

struct AllocationNode {
    double data_demand = 0;     // D, bytes per second
    double priority = 0;        // P, any scale
    double compute_demand = 0;  // Q, operations or samples per second
    double free_bytes = 0;      // M
};

/// w_i = (D_i P_i Q_i)^(1/3), each over its maximum; r_i = min(w_i / sum w, cap_i), and what a cap
/// cuts off goes to those below theirs. cap_i = M_i over the bytes that are to be given out
/// (`bytes`), at most 1: with all free memory in its place the caps would sum to 1 and decide
/// alone. `bytes` of 0 means just that. Sums to 1, or to less when the memory of all is too small.
/// Nothing when an input is unusable or there is no memory.
std::optional<std::vector<double>> allocation_ratio(std::span<const AllocationNode> nodes,
                                                    double bytes);

}  // namespace fabricd
