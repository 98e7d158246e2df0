// A job whose ranks have speeds: makes the windows that a loop sees, and follows its directives.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "fabricd/control/loop/loop.hpp"
#include "tests/unit/control/adversarial.hpp"

namespace control_test {

class EmulatedJob {
  public:
    explicit EmulatedJob(std::vector<double> speeds)
        : speeds(std::move(speeds)),
          shares(this->speeds.size(), 1.0 / double(this->speeds.size())) {}

    /// The next window: some steps with the shares of now, with so much noise.
    fabricd::Window window() {
        fabricd::Window made;
        made.number = ++number_;
        made.taken_ns = static_cast<std::int64_t>(number_) * 1'000'000'000;
        made.length_s = 1;
        made.jobs.push_back(job());
        return made;
    }

    /// The speeds become these after that part of the next window.
    void turn(std::vector<double> then, double after) {
        before_turn_ = after;
        then_ = std::move(then);
    }

    /// Other noise.
    void sow(std::uint64_t seed) { numbers_ = Numbers(seed); }

    fabricd::JobWindow job() {
        if (then_.empty()) return job_of(speeds);
        // Each rank's mean over the steps before and after, of which the faster part has more.
        const double steps = before_turn_ / step_of(speeds);
        const double more = (1 - before_turn_) / step_of(then_);
        std::vector<double> mixed;
        for (std::size_t i = 0; i < speeds.size(); ++i) {
            mixed.push_back((steps + more) / (steps / speeds[i] + more / then_[i]));
        }
        fabricd::JobWindow window = job_of(mixed);
        for (auto& rank : window.ranks) rank.step_s = kSteps / (steps + more);
        samples_per_s = batch * (steps + more);
        speeds = std::move(then_);
        then_.clear();
        return window;
    }

    fabricd::JobWindow job_of(const std::vector<double>& speeds) {
        fabricd::JobWindow window{1, group, static_cast<std::int32_t>(speeds.size()), {}};
        double slowest = 0;
        for (std::size_t i = 0; i < speeds.size(); ++i) {
            const double factor = 1 + (normal_noise > 0 ? normal_noise * normal()
                                                        : noise * (2 * numbers_.uniform() - 1));
            const double work = batch * shares[i] + (shares[i] > 0 ? fixed : 0);
            const double compute = work / speeds[i] * std::max(factor, 0.1) * slowdown(i);
            slowest = std::max(slowest, compute);
            fabricd::RankWindow rank;
            rank.session = 100 + sessions_from + i;
            rank.rank = static_cast<std::int32_t>(i);
            rank.steps = kSteps;
            rank.samples = kSteps * batch * shares[i];
            rank.compute_s = kSteps * compute;
            rank.comm_s = kSteps * sync_s / std::max(interval, 1U);
            rank.loss = loss;
            rank.gradient_norm = rank.mean_gradient_norm = std::nan("");
            rank.sync_interval = interval;
            rank.directive_serial = serial;
            rank.faults = i < faults.size() ? faults[i] : 0;
            rank.queue = i < units.size() ? static_cast<std::uint32_t>(units[i]) : 0;
            window.ranks.push_back(rank);
        }
        const double step = slowest + sync_s / std::max(interval, 1U);
        for (auto& rank : window.ranks) {
            rank.step_s = kSteps * step;
            rank.wait_s = kSteps * slowest - rank.compute_s;
        }
        samples_per_s = batch / step;
        return window;
    }

    /// Ticks the loop with the next window and does what it says.
    fabricd::TickResult tick(fabricd::Loop& loop) {
        auto result = loop.tick(window());
        for (const auto& directive : result.directives) follow(directive);
        return result;
    }

    void follow(const fabricd::Directive& directive) {
        if (!obeys) return;
        serial = directive.serial;
        if (!directive.shares.empty()) shares = directive.shares;
        if (directive.sync_interval != 0) interval = directive.sync_interval;
        if (!directive.units.empty()) {
            units = directive.units;
            double all = 0;
            for (const double count : units) all += count;
            for (std::size_t i = 0; i < units.size(); ++i) shares[i] = units[i] / all;
        }
    }

    double ideal() const { return sum(speeds); }

    static constexpr double kSteps = 10;
    std::vector<double> speeds;  // samples/s
    std::vector<double> shares;
    std::vector<double> units;
    std::vector<fabricd::DeviceFaults> faults;  // of the ranks' devices
    double batch = 100;
    double noise = 0.02;      // at most so much, any of it alike
    double normal_noise = 0;  // or a standard deviation
    double fixed = 0;         // samples that a rank's fixed costs are worth in each step
    double sync_s = 0;
    double loss = 1;
    double strain = 0;  // a rank with more than its even share gets slower by so much times
    std::uint32_t interval = 1;
    std::uint64_t serial = 0;
    std::uint64_t group = 7;
    std::uint64_t sessions_from = 0;
    bool obeys = true;
    double samples_per_s = 0;  // of the last window

  private:
    // Twelve of them make a normal number as good as any test needs.
    double normal() {
        double all = -6;
        for (int i = 0; i < 12; ++i) all += numbers_.uniform();
        return all;
    }
    double step_of(const std::vector<double>& at) const {
        double slowest = 0;
        for (std::size_t i = 0; i < at.size(); ++i) {
            slowest = std::max(slowest, batch * shares[i] / at[i]);
        }
        return slowest;
    }
    double slowdown(std::size_t i) const {
        return shares[i] * static_cast<double>(speeds.size()) > 1.05 ? 1 + strain : 1;
    }

    double before_turn_ = 0;
    std::vector<double> then_;
    Numbers numbers_{42};
    std::uint64_t number_ = 0;
};

/// Ticks so often; everything that happened.
inline fabricd::TickResult run(EmulatedJob& job, fabricd::Loop& loop, int windows) {
    fabricd::TickResult all;
    for (int i = 0; i < windows; ++i) {
        auto result = job.tick(loop);
        for (auto& decision : result.decisions) all.decisions.push_back(std::move(decision));
        for (auto& outcome : result.outcomes) all.outcomes.push_back(std::move(outcome));
        for (auto& directive : result.directives) all.directives.push_back(std::move(directive));
        for (auto& note : result.notes) all.notes.push_back(std::move(note));
    }
    return all;
}

}  // namespace control_test
