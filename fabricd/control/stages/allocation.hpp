// S421 to S423: how much of a node does each task get? Pure.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fabricd {

struct TaskDemand {
    double usage = 0;     // u: what it would use of the node, any scale common to all
    double priority = 1;  // p
    double delay = 0;     // d: steps for which others wait on what it depends on; vGPUs: 0
    double promised = 0;  // quanta that are its own
    double needs = 0;     // quanta that it can use; more than `total`: as many as it gets
};

/// A_i = R_total w_i / sum w, w = u p / (1 + d), in whole quanta of the device (1 % of compute), of
/// what is left when every task has what it needs of its promise; none gets more than it needs
/// before all have that, and what no task needs goes home, to those below their promise. None
/// falls below `floor` (0.1: a tenth) of the even part, as far as the quanta go. The quanta always
/// sum to `total`. Nothing when an input is unusable.
std::optional<std::vector<std::uint64_t>> allocate_tasks(std::span<const TaskDemand> tasks,
                                                         std::uint64_t total, double floor);

}  // namespace fabricd
