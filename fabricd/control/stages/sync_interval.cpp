#include "fabricd/control/stages/sync_interval.hpp"

#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

std::optional<double> update_speed(double steps_per_s, double sync_s, const SyncWeights& weights) {
    const double inputs[] = {steps_per_s, sync_s, weights.speed, weights.delay};
    if (!usable(inputs)) return std::nullopt;
    const double kappa = std::pow(steps_per_s, weights.speed) * std::pow(sync_s, weights.delay);
    return usable(kappa) ? std::optional(kappa) : std::nullopt;
}

std::uint32_t sync_interval(double kappa, std::uint32_t interval_now, bool loss_worsens,
                            const SyncWeights& weights) noexcept {
    const std::uint32_t most = std::max(weights.interval_max, 1U);
    const std::uint32_t now = std::clamp(interval_now, 1U, most);
    if (loss_worsens) return std::max(now / 2, 1U);
    if (!usable(kappa) || !(weights.share > 0)) return now;
    // A quotient that is a whole number but for rounding is that number: 0.3 / 0.1 gives 3, not 4.
    const double wanted = std::ceil(kappa / weights.share - 1e-9);
    return static_cast<std::uint32_t>(std::clamp(wanted, 1.0, static_cast<double>(most)));
}

}  // namespace fabricd
