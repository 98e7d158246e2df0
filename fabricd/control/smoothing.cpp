#include "fabricd/control/smoothing.hpp"

#include <algorithm>
#include <cmath>

namespace fabricd {

double weight_of_half_life(double windows) noexcept {
    if (!(windows > 0)) return 1;
    return 1 - std::exp2(-1 / windows);
}

bool Ewma::update(double value, double weight) {
    if (!std::isfinite(value)) {
        miss();
        return false;
    }
    age = 0;
    if (values == 0) {
        mean = value;
        values = 1;
        return false;
    }
    const double distance = value - mean;
    const double allowed = std::max(kOutlierDeviations * deviation, kOutlierShare * std::abs(mean));
    const int side = std::abs(distance) <= allowed ? 0 : distance > 0 ? 1 : -1;
    if (side != 0 && side == suspect_side) {
        // The younger one counts more: the change may have happened inside the older window, which
        // then saw only a part of it; and alone, where the two show that it did.
        const bool is_mixed = std::abs(value - suspect) > kOutlierDeviations * deviation;
        mean = is_mixed ? value : 0.25 * suspect + 0.75 * value;
        deviation = std::min(deviation, kOutlierShare * std::abs(mean));
        values = 1;
        ++regimes;
        suspect_side = 0;
        return true;
    }
    suspect = value;
    suspect_side = side;
    // A plain mean until there are enough values for the weight to make sense: the first window,
    // which is often the worst, would otherwise count for long.
    const double now = std::max(weight, 1.0 / (values + 1.0));
    mean += now * distance;
    // One outlier may be a glitch: it must not make the scatter so wide that nothing is one.
    const double scatter = side == 0 ? std::abs(distance) : std::min(std::abs(distance), allowed);
    deviation += now * (scatter - deviation);
    ++values;
    return false;
}

void Trend::update(double value, double level_weight, double slope_weight) {
    if (!std::isfinite(value)) return;
    if (values == 0) {
        level = value;
    } else {
        const double before = level;
        level = level_weight * value + (1 - level_weight) * (level + slope);
        slope = slope_weight * (level - before) + (1 - slope_weight) * slope;
    }
    ++values;
}

}  // namespace fabricd
