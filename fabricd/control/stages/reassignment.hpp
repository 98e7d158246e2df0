// S223: which node gets how many tasks (micro-batches, shards)? Pure.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fabricd {

struct Reassignment {
    std::vector<std::uint64_t> tasks;  // of each node; as many in all as before
    double before_s = 0;               // predicted step time: the slowest node's
    double after_s = 0;
    std::uint32_t rounds = 0;  // single tasks that were moved until it was stable
};

/// Tasks in proportion to `strategy` (R of S222) by largest remainder, then one task at a time from
/// the node that ends last to the one that would end first, until that no longer helps; each node
/// keeps its part by R, rounded up or down: R decides, and the search how it is rounded. `task_s`
/// is what one task takes on each node. The answer is the tasks of before, unless the predicted
/// step time falls by more than `gain` (0.05: 5 %). Nothing when an input is unusable.
std::optional<Reassignment> reassign_tasks(std::span<const std::uint64_t> tasks,
                                           std::span<const double> strategy,
                                           std::span<const double> task_s, double gain);

}  // namespace fabricd
