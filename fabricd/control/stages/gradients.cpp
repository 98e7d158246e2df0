#include "fabricd/control/stages/gradients.hpp"

#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

GradientMetrics observe_gradients(GradientMetrics metrics, const GradientReading& window,
                                  double level_weight, double slope_weight) {
    metrics.compute_s.update(window.compute_s, level_weight, slope_weight);
    metrics.wait_s.update(window.wait_s, level_weight, slope_weight);
    metrics.norm.update(window.norm, level_weight, slope_weight);
    metrics.bytes.update(window.bytes, level_weight, slope_weight);
    return metrics;
}

std::optional<double> gradient_noise_scale(double own_norm_squared, double mean_norm_squared,
                                           double own_samples, double all_samples) {
    const double inputs[] = {own_norm_squared, mean_norm_squared, own_samples, all_samples};
    if (!usable(inputs) || own_samples <= 0 || all_samples <= own_samples) return std::nullopt;
    const double signal = (all_samples * mean_norm_squared - own_samples * own_norm_squared) /
                          (all_samples - own_samples);
    const double noise =
        (own_norm_squared - mean_norm_squared) / (1 / own_samples - 1 / all_samples);
    if (!(signal > 0) || !usable(noise)) return std::nullopt;
    const double scale = noise / signal;
    // The quotient of two finite numbers may still be infinite.
    return usable(scale) ? std::optional(scale) : std::nullopt;
}

}  // namespace fabricd
