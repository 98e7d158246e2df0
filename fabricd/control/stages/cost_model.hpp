// Cost model: what a step costs a rank, as a fixed part and one for each sample. The fixed part
// shows when the loop itself gives a rank other samples; until then there is none. Plain values.

#pragma once

#include <optional>

#include "fabricd/control/stages/smoothing.hpp"

namespace fabricd {

/// A step of one rank.
struct StepCost {
    double samples = 0;
    double compute_s = 0;
};

/// compute_s = sample_s (fixed_samples + samples). As samples and not as seconds, because a rank
/// that gets slower becomes so in all it does.
struct CostLine {
    double sample_s = 0;
    double fixed_samples = 0;
};

/// The line through two steps. `scatter`: relative standard deviations of the two times. Nothing
/// when the steps are too much alike, when the fixed part is not well above what the scatter may
/// bring about, or when a sample would cost nothing.
std::optional<CostLine> fit_cost(const StepCost& before, const StepCost& after,
                                 double scatter_before, double scatter_after);

/// What is learned from one change of a rank's samples: the step of before, and the second and
/// third window in which all ranks act on the change; the first one is mixed.
struct CostProbe {
    StepCost before;
    double scatter = 0;         // of one window, relative
    double before_scatter = 0;  // of the mean in `before`
    StepCost first;
};

/// Takes the probe's last window into a rank's speed. True when the line could be drawn; else both
/// windows are values like any others, and `changed` says whether they began a new regime.
bool learn_cost(const CostProbe& probe, const StepCost& last, double weight, Ewma& sample_s,
                double& fixed_samples, bool& changed);

}  // namespace fabricd
