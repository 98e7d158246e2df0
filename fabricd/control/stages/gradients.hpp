// S111: how do the gradients go? Level and trend of what a rank measures, and the gradient noise
// scale. Pure.

#pragma once

#include <optional>

#include "fabricd/control/stages/smoothing.hpp"

namespace fabricd {

/// One rank's window.
struct GradientReading {
    double compute_s = 0;  // per step
    double wait_s = 0;     // per step
    double norm = 0;       // of the rank's own gradient; NaN: not given
    double bytes = 0;      // of gradients per step
};

/// What a rank's windows say so far, with a forecast one window ahead.
struct GradientMetrics {
    Trend compute_s;
    Trend wait_s;
    Trend norm;
    Trend bytes;
};

/// Takes one window into the metrics. A field that is not finite leaves its trend alone.
GradientMetrics observe_gradients(GradientMetrics metrics, const GradientReading& window,
                                  double level_weight, double slope_weight);

/// The batch (in samples) at which the noise in the gradient is as large as the gradient: far below
/// it, more samples per step help; far above, they are wasted. From the squared norm of one rank's
/// gradient, over its `own_samples`, and of the mean over `all_samples`:
///   true |G|^2 = (B |G_B|^2 - b |G_b|^2) / (B - b)     noise = (|G_b|^2 - |G_B|^2) / (1/b - 1/B)
/// Nothing when an input is unusable, when b is not below B, or when chance made one of the two
/// negative, which happens with single readings: smooth the result.
std::optional<double> gradient_noise_scale(double own_norm_squared, double mean_norm_squared,
                                           double own_samples, double all_samples);

}  // namespace fabricd
