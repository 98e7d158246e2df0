// What every stage does with numbers that come from outside. See docs/control_loop.md.

#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

namespace fabricd {

/// Fit for a formula: neither NaN, infinite nor negative. Telemetry is written by clients, so a
/// stage asks this of each input and answers nothing at all (std::nullopt) when one is not; what
/// depends on the stage then stays as it is.
inline bool usable(double value) noexcept {
    return std::isfinite(value) && value >= 0;
}

inline bool usable(std::span<const double> values) noexcept {
    return std::all_of(values.begin(), values.end(), [](double value) { return usable(value); });
}

/// 0 for an empty list.
inline double sum_of(std::span<const double> values) noexcept {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
}

inline double largest_of(std::span<const double> values) noexcept {
    return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

/// The value at `part` (0 to 1) of the sorted list, the lower of two neighbours; 0 for an empty
/// list.
inline double quantile_of(std::vector<double> values, double part) {
    if (values.empty()) return 0;
    const auto place = static_cast<std::size_t>(part * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(place),
                     values.end());
    return values[place];
}

inline double median_of(std::vector<double> values) {
    return quantile_of(std::move(values), 0.5);
}

}  // namespace fabricd
