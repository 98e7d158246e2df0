#include "fabricd/control/stages/reassignment.hpp"

#include <algorithm>
#include <numeric>

#include "fabricd/control/stages/apportion.hpp"
#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

namespace {

double time_of(std::uint64_t tasks, double task_s) {
    return static_cast<double>(tasks) * task_s;
}

std::size_t slowest(std::span<const std::uint64_t> tasks, std::span<const double> task_s) {
    std::size_t last = 0;
    for (std::size_t i = 1; i < tasks.size(); ++i) {
        if (time_of(tasks[i], task_s[i]) > time_of(tasks[last], task_s[last])) last = i;
    }
    return last;
}

// Moves one task if the step gets shorter by it. `parts` are what the strategy gives each, which is
// rounded here: no node gets less than its part rounded down, or more than it rounded up.
bool move_one(std::vector<std::uint64_t>& tasks, std::span<const double> parts,
              std::span<const double> task_s) {
    const std::size_t from = slowest(tasks, task_s);
    if (static_cast<double>(tasks[from]) <= parts[from]) return false;
    std::size_t to = from;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (i == from || static_cast<double>(tasks[i]) >= parts[i]) continue;
        const double then = time_of(tasks[i] + 1, task_s[i]);
        if (to == from || then < time_of(tasks[to] + 1, task_s[to])) to = i;
    }
    const bool helps =
        to != from && time_of(tasks[to] + 1, task_s[to]) < time_of(tasks[from], task_s[from]);
    if (!helps) return false;
    --tasks[from];
    ++tasks[to];
    return true;
}

}  // namespace

std::optional<Reassignment> reassign_tasks(std::span<const std::uint64_t> tasks,
                                           std::span<const double> strategy,
                                           std::span<const double> task_s, double gain) {
    const bool same_size = tasks.size() == strategy.size() && tasks.size() == task_s.size();
    if (tasks.empty() || !same_size || !usable(strategy) || !usable(task_s) || !usable(gain)) {
        return std::nullopt;
    }
    const std::uint64_t all = std::accumulate(tasks.begin(), tasks.end(), std::uint64_t{0});
    Reassignment answer{{tasks.begin(), tasks.end()}, 0, 0, 0};
    const std::size_t last = slowest(tasks, task_s);
    answer.before_s = time_of(tasks[last], task_s[last]);
    answer.after_s = answer.before_s;

    // From scratch and not from what is: so the answer does not depend on how it came to be so.
    std::vector<std::uint64_t> wanted = whole_units(all, strategy);
    std::vector<double> parts = shares_of(strategy);
    for (double& part : parts) part *= static_cast<double>(all);
    std::uint32_t rounds = 0;
    // A node that gave one is at its part rounded down and gives no other.
    while (move_one(wanted, parts, task_s)) ++rounds;
    const std::size_t end = slowest(wanted, task_s);
    const double after_s = time_of(wanted[end], task_s[end]);
    if (!(after_s < answer.before_s * (1 - gain))) return answer;
    return Reassignment{std::move(wanted), answer.before_s, after_s, rounds};
}

}  // namespace fabricd
