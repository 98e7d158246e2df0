#include "fabricd/control/stages/cost_model.hpp"

#include <algorithm>
#include <cmath>

namespace fabricd {

namespace {

/// With less difference the line turns with every breath of noise.
constexpr double kMinDifference = 0.1;

/// A fixed part counts when it is this many standard deviations above none.
constexpr double kSigmas = 3;

/// Two windows of one regime are no further apart, whatever the scatter.
constexpr double kAlike = 0.10;

double root_of_squares(double a, double b) {
    return std::sqrt(a * a + b * b);
}

bool is_sound(const StepCost& step) {
    return std::isfinite(step.samples) && std::isfinite(step.compute_s) && step.samples > 0 &&
           step.compute_s > 0;
}

}  // namespace

std::optional<CostLine> fit_cost(const StepCost& before, const StepCost& after,
                                 double scatter_before, double scatter_after) {
    if (!is_sound(before) || !is_sound(after)) return std::nullopt;
    const double more = after.samples - before.samples;
    const double largest = std::max(before.samples, after.samples);
    if (std::abs(more) < kMinDifference * largest) return std::nullopt;
    const double sample_s = (after.compute_s - before.compute_s) / more;
    if (!(sample_s > 0)) return std::nullopt;
    const double fixed_s = before.compute_s - sample_s * before.samples;
    const double scatter = root_of_squares(after.samples * scatter_before * before.compute_s,
                                           before.samples * scatter_after * after.compute_s) /
                           std::abs(more);
    if (!(fixed_s > kSigmas * scatter)) return std::nullopt;
    return CostLine{sample_s, fixed_s / sample_s};
}

bool learn_cost(const CostProbe& probe, const StepCost& last, double weight, Ewma& sample_s,
                double& fixed_samples, bool& changed) {
    const auto cost_of = [&](const StepCost& step) {
        return step.compute_s / (step.samples + fixed_samples);
    };
    const StepCost after{(probe.first.samples + last.samples) / 2,
                         (probe.first.compute_s + last.compute_s) / 2};
    const double apart = std::abs(cost_of(probe.first) / cost_of(last) - 1);
    const bool is_one_regime = apart <= std::max(4 * probe.scatter, kAlike);
    // A speed that the rank has had before explains more than a line does.
    const bool is_return = sample_s.is_return(cost_of(after));
    const auto line =
        is_one_regime && !is_return
            ? fit_cost(probe.before, after, probe.before_scatter, probe.scatter / std::sqrt(2.0))
            : std::nullopt;
    // Where the fixed part is found again to be none, it was something else that looked like it.
    const double off = std::abs(cost_of(probe.before) / cost_of(after) - 1);
    const bool is_refuted = is_one_regime && !is_return && !line && fixed_samples > 0 &&
                            off > std::max(4 * probe.scatter, kAlike);
    if (!line && !is_refuted) {
        changed = sample_s.update(cost_of(probe.first), weight);
        changed = sample_s.update(cost_of(last), weight) || changed;
        return false;
    }
    changed = false;
    fixed_samples = line ? line->fixed_samples : 0;
    Ewma fresh;
    fresh.mean = after.compute_s / (after.samples + fixed_samples);
    fresh.deviation = probe.scatter * fresh.mean;
    fresh.values = 2;
    fresh.last = fresh.mean;
    fresh.sound = {fresh.mean, fresh.deviation, true};
    fresh.regimes = sample_s.regimes;
    sample_s = fresh;
    return true;
}

}  // namespace fabricd
