// Smoothing: what a window measured, made fit for a decision. Plain values, no clock: one update is
// one window.

#pragma once

#include <cstdint>

namespace fabricd {

/// The weight of a new value that makes an old one count half after so many windows.
double weight_of_half_life(double windows) noexcept;

/// Exponentially weighted mean with a memory of how much values scatter, and with a restart: a
/// quantity that really changed (a device throttles) would need some 15 windows to be believed with
/// a half-life of 5. So two windows in a row that lie outside the scatter on the same side begin a
/// new regime, in which the mean starts from them. One is enough for the way back to the regime
/// before: that there is such a level is known.
struct Ewma {
    /// Where a regime was when a value of it lay inside its scatter for the last time. Not known
    /// when it was never seen twice.
    struct Level {
        double mean = 0;
        double deviation = 0;
        bool known = false;
    };

    double mean = 0;
    double deviation = 0;      // mean absolute distance from the mean, as the steps between say
    std::uint32_t values = 0;  // of this regime
    std::uint32_t regimes = 0;
    double suspect = 0;     // the outlier of the window before
    int suspect_side = 0;   // +1 above, -1 below, 0 none
    std::uint32_t age = 0;  // windows without a value since the last one
    double last = 0;        // that was no outlier
    Level sound;            // of this regime, which one outlier has not bent
    Level former;           // of the regime before

    /// Takes a window's value. A value that is not finite changes nothing but the age. True when
    /// this value began a new regime.
    bool update(double value, double weight);
    /// A window without a value.
    void miss() noexcept { ++age; }
    bool known() const noexcept { return values > 0; }
    /// The value is an outlier, and would have been none in the regime before.
    bool is_return(double value) const noexcept;

  private:
    void begin(double value, const Level& from);
};

/// An outlier lies further off than this many mean distances ...
inline constexpr double kOutlierDeviations = 4;
/// ... and than this part of the mean, below which a change is not worth a new beginning.
inline constexpr double kOutlierShare = 0.10;

/// Holt's linear smoothing: level and slope, for a forecast some windows ahead.
struct Trend {
    double level = 0;
    double slope = 0;  // per window
    std::uint32_t values = 0;

    /// A value that is not finite is ignored.
    void update(double value, double level_weight, double slope_weight);
    double forecast(double windows) const noexcept { return level + slope * windows; }
};

}  // namespace fabricd
