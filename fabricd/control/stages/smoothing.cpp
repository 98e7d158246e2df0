#include "fabricd/control/stages/smoothing.hpp"

#include <algorithm>
#include <cmath>

namespace fabricd {

namespace {

/// One value says no more of the scatter than this many of it: few of noise, all of a change.
constexpr double kScatterRise = 2.5;

double allowed_of(double mean, double deviation) {
    return std::max(kOutlierDeviations * deviation, kOutlierShare * std::abs(mean));
}

}  // namespace

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
        mean = last = value;
        values = 1;
        return false;
    }
    // Behind a value far off, as if that had not been.
    const Level now_at = suspect_side != 0 && sound.known ? sound : Level{mean, deviation, true};
    const double distance = value - now_at.mean;
    const double allowed = allowed_of(now_at.mean, now_at.deviation);
    const int side = std::abs(distance) <= allowed ? 0 : distance > 0 ? 1 : -1;
    if (side != 0 && side == suspect_side) {
        // The younger one counts more: the change may have happened inside the older window, which
        // then saw only a part of it; and alone, where the two show that it did.
        const bool is_mixed = std::abs(value - suspect) > kOutlierDeviations * deviation;
        const double begun = is_mixed ? value : 0.25 * suspect + 0.75 * value;
        begin(value, {begun, sound.known ? sound.deviation : deviation, !is_mixed});
        return true;
    }
    if (is_return(value)) {
        begin(value, {(former.mean + value) / 2, former.deviation, false});
        return true;
    }
    suspect = value;
    suspect_side = side;
    // A plain mean until there are enough values for the weight to make sense: the first window,
    // which is often the worst, would otherwise count for long.
    const double now = std::max(weight, 1.0 / (values + 1.0));
    mean += now * (side == 0 ? value - mean : side * allowed);
    // From value to value: around the mean, a quantity that has two levels in turn would scatter by
    // their distance, and neither would ever be seen as a change. One outlier may be a glitch: it
    // must not make the scatter so wide that nothing is one.
    const bool is_first = side == 0 && deviation == 0;
    const double most =
        is_first ? allowed : std::max(kScatterRise * deviation, kOutlierShare / 4 * std::abs(mean));
    const double scatter = std::min(std::abs(value - last) / std::sqrt(2.0), most);
    deviation += (is_first ? 1 : now) * (scatter - deviation);
    ++values;
    if (side == 0) {
        last = value;
        sound = {mean, deviation, true};
    }
    return false;
}

bool Ewma::is_return(double value) const noexcept {
    return former.known && std::abs(value - mean) > allowed_of(mean, deviation) &&
           std::abs(value - former.mean) <= allowed_of(former.mean, former.deviation);
}

// `from` is known when two values have shown it, and only then can it be returned to.
void Ewma::begin(double value, const Level& from) {
    former = sound;
    mean = from.mean;
    deviation = std::min(from.deviation, kOutlierShare * std::abs(mean));
    sound = {mean, deviation, from.known};
    last = value;
    values = 1;
    ++regimes;
    suspect_side = 0;
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
