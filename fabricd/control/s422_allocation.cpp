#include "fabricd/control/s422_allocation.hpp"

#include "fabricd/control/apportion.hpp"
#include "fabricd/control/numbers.hpp"

namespace fabricd {

std::optional<std::vector<std::uint64_t>> allocate_tasks(std::span<const TaskDemand> tasks,
                                                         std::uint64_t total, double floor) {
    if (!usable(floor) || floor > 1) return std::nullopt;
    std::vector<double> weights;
    for (const TaskDemand& task : tasks) {
        const double inputs[] = {task.usage, task.priority, task.delay};
        if (!usable(inputs)) return std::nullopt;
        weights.push_back(task.usage * task.priority / (1 + task.delay));
    }
    if (!usable(weights)) return std::nullopt;
    if (tasks.empty()) return std::vector<std::uint64_t>{};
    // The floor is whole quanta, so that it still holds after rounding; the rest goes by weight.
    const auto count = static_cast<std::uint64_t>(tasks.size());
    const auto even = total / count;
    const auto least =
        std::min(static_cast<std::uint64_t>(
                     std::ceil(floor * static_cast<double>(total) / static_cast<double>(count))),
                 even);
    std::vector<std::uint64_t> parts = whole_units(total, weights);
    // Who is below the floor is lifted; the rest is divided among the others as if it were all
    // there is, which may push another one below: at most as many rounds as there are tasks.
    std::vector<char> lifted(tasks.size(), 0);
    for (bool again = true; again;) {
        again = false;
        for (std::size_t i = 0; i < parts.size(); ++i) {
            if (lifted[i] != 0 || parts[i] >= least) continue;
            lifted[i] = 1;
            again = true;
        }
        if (!again) break;
        std::vector<double> rest;
        std::uint64_t left = total;
        for (std::size_t i = 0; i < parts.size(); ++i) {
            if (lifted[i] != 0) left -= least;
            if (lifted[i] == 0) rest.push_back(weights[i]);
        }
        const auto given = whole_units(left, rest);
        for (std::size_t i = 0, next = 0; i < parts.size(); ++i) {
            parts[i] = lifted[i] != 0 ? least : given[next++];
        }
    }
    return parts;
}

}  // namespace fabricd
