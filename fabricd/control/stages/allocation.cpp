#include "fabricd/control/stages/allocation.hpp"

#include "fabricd/control/stages/apportion.hpp"
#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

namespace {

/// One round after the other gives out what is left, until nothing is.
class Quanta {
  public:
    Quanta(std::size_t tasks, std::uint64_t total)
        : parts_(tasks, 0), left_(static_cast<double>(total)) {}

    /// To those below `upto`, by weight.
    void give(const std::vector<double>& weights, const std::vector<double>& upto) {
        std::vector<double> caps;
        for (std::size_t i = 0; i < parts_.size(); ++i) {
            caps.push_back(std::max(std::min(upto[i], left_ + parts_[i]) - parts_[i], 0.0));
        }
        const std::vector<double> more = whole_under_caps(left_, weights, caps);
        for (std::size_t i = 0; i < parts_.size(); ++i) {
            parts_[i] += more[i];
            left_ -= more[i];
        }
    }

    std::vector<std::uint64_t> take() {
        const std::vector<double> all(parts_.size(), left_ + sum_of(parts_));
        // No task needs it and none was promised it.
        give(all, all);
        return {parts_.begin(), parts_.end()};
    }

  private:
    std::vector<double> parts_;
    double left_;
};

}  // namespace

std::optional<std::vector<std::uint64_t>> allocate_tasks(std::span<const TaskDemand> tasks,
                                                         std::uint64_t total, double floor) {
    if (!usable(floor) || floor > 1) return std::nullopt;
    std::vector<double> weights, needs, own, promised;
    // Whole quanta, so that it still holds after rounding, and as far as all can have it.
    const auto count = static_cast<double>(tasks.size());
    const double least = std::min(std::ceil(floor * static_cast<double>(total) / count),
                                  std::floor(static_cast<double>(total) / count));
    for (const TaskDemand& task : tasks) {
        const double inputs[] = {task.usage, task.priority, task.delay, task.promised, task.needs};
        if (!usable(inputs)) return std::nullopt;
        weights.push_back(task.usage * task.priority / (1 + task.delay));
        needs.push_back(std::ceil(task.needs));
        promised.push_back(std::floor(task.promised));
        own.push_back(std::max(std::min(needs.back(), promised.back()), least));
    }
    if (!usable(weights)) return std::nullopt;
    if (tasks.empty()) return std::vector<std::uint64_t>{};
    Quanta quanta(tasks.size(), total);
    const std::vector<double> leasts(tasks.size(), least);
    quanta.give(leasts, leasts);
    quanta.give(own, own);
    quanta.give(weights, needs);
    quanta.give(promised, promised);
    return quanta.take();
}

}  // namespace fabricd
