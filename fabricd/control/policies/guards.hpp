// Guards: what stands between a prediction and an action. Plain state machines that count windows;
// no clock. See docs/control_reference.md.

#pragma once

#include <cstdint>

namespace fabricd {

/// A condition with hysteresis: it begins after `windows` windows in a row above `enter` and ends
/// after as many below `leave`. In between nothing changes, so that noise around one threshold does
/// not switch anything to and fro.
class Hysteresis {
  public:
    /// Takes a window's value; NaN counts for neither side. The condition afterwards.
    bool update(double value, double enter, double leave, std::int64_t windows) noexcept;
    bool active() const noexcept { return active_; }
    /// It is there, as something else has shown.
    void begin() noexcept {
        active_ = true;
        count_ = 0;
    }
    /// Windows in a row that speak for a change.
    std::int64_t counted() const noexcept { return count_; }

  private:
    bool active_ = false;
    std::int64_t count_ = 0;
};

/// What an action promises.
struct Promise {
    double before_s = 0;  // step time, or any cost
    double after_s = 0;
    double cost_s = 0;  // of acting, once
};

/// The predicted gain: how much more gets done in the same time. 0 for unusable numbers.
double gain_of(const Promise& promise) noexcept;

/// Whether it is worth it: gains more than `least`, and saves more than it costs within
/// `horizon_s`.
bool is_worth_it(const Promise& promise, double least, double horizon_s) noexcept;

/// Watches one action after it was taken: compares the objective with what was promised.
struct Probation {
    enum class Verdict { kRunning, kKept, kWorse, kIgnored };

    std::uint64_t decision = 0;  // 0: nothing on probation
    double before = 0;           // objective without the action
    double promised = 0;         // and with it
    double noise = 0;            // its usual relative scatter
    double sum = 0;              // of the objective's values
    std::int64_t windows = 0;    // that count
    std::int64_t waiting = 0;    // for everybody to have taken it over

    bool running() const noexcept { return decision != 0; }

    /// Other figures to be judged by. What was measured before belongs to other speeds and does not
    /// count, unless it `is_same` but for what is known of it.
    void promise_again(double without, double with, bool is_same) noexcept;

    /// A window's objective. `in_force`: all ranks act on it; the first window in which they do is
    /// mixed and does not count. kIgnored when that does not happen within twice `length` windows.
    Verdict update(double objective, bool in_force, std::int64_t length) noexcept;
    double mean() const noexcept {
        return windows > 1 ? sum / static_cast<double>(windows - 1) : 0;
    }
    /// Below this the action is undone: the promise less the noise, which is the scatter of two
    /// means, and at least half of the promised gain (predictions scatter, too).
    double least() const noexcept;
};

}  // namespace fabricd
