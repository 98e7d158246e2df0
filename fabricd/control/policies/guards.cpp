#include "fabricd/control/policies/guards.hpp"

#include <algorithm>
#include <cmath>

namespace fabricd {

bool Hysteresis::update(double value, double enter, double leave, std::int64_t windows) noexcept {
    // NaN compares false with everything, and so breaks a row without beginning one.
    const bool speaks_for_change = active_ ? value < leave : value > enter;
    count_ = speaks_for_change ? count_ + 1 : 0;
    if (count_ >= windows) {
        active_ = !active_;
        count_ = 0;
    }
    return active_;
}

double gain_of(const Promise& promise) noexcept {
    const bool is_sound = std::isfinite(promise.before_s) && std::isfinite(promise.after_s) &&
                          promise.before_s > 0 && promise.after_s > 0;
    return is_sound ? promise.before_s / promise.after_s - 1 : 0;
}

bool is_worth_it(const Promise& promise, double least, double horizon_s) noexcept {
    const double gain = gain_of(promise);
    // Within the horizon the same work takes so much less time.
    const double saved_s = horizon_s * gain / (1 + gain);
    return gain > least && saved_s > promise.cost_s;
}

Probation::Verdict Probation::update(double objective, bool in_force,
                                     std::int64_t length) noexcept {
    // Twice as long as it would be judged: a job with long steps between its looks is slow to obey.
    if (!in_force) return ++waiting > 2 * length ? Verdict::kIgnored : Verdict::kRunning;
    if (!std::isfinite(objective)) return Verdict::kRunning;
    if (++windows > 1) sum += objective;
    if (windows <= length) return Verdict::kRunning;
    return mean() < least() ? Verdict::kWorse : Verdict::kKept;
}

void Probation::promise_again(double without, double with, bool is_same) noexcept {
    before = without;
    // No worse than without: that is the least to be asked of any action.
    promised = std::max(with, without);
    if (is_same) return;
    sum = 0;
    // Of the speeds of now already: none of these windows is mixed.
    windows = 1;
}

double Probation::least() const noexcept {
    // Two means are compared, each of which scatters: two sigma of one is not enough, and the
    // square root of two more would pretend to a precision that a mean absolute deviation does not
    // have.
    const double scatter = 2 * noise * promised;
    return promised - std::max(scatter, (promised - before) / 2);
}

}  // namespace fabricd
