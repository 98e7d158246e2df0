// Numbers for property tests of stages: plausible ones, and those that telemetry must never bring.

#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace control_test {

/// Deterministic on every platform: <random>'s distributions are not.
class Numbers {
  public:
    explicit Numbers(std::uint64_t seed) : random_(seed) {}

    double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
    std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_() % end); }

    /// From a millionth to a million, any size alike; now and then 0.
    double plausible() { return below(8) == 0 ? 0 : std::pow(10, 12 * uniform() - 6); }

    /// Mostly plausible, else one of the numbers that break formulas.
    double adversarial() {
        static constexpr double kAdversarial[] = {0,
                                                  -0.0,
                                                  -1,
                                                  1e308,
                                                  -1e308,
                                                  std::numeric_limits<double>::min(),
                                                  std::numeric_limits<double>::denorm_min(),
                                                  std::numeric_limits<double>::infinity(),
                                                  -std::numeric_limits<double>::infinity(),
                                                  std::numeric_limits<double>::quiet_NaN()};
        return below(2) == 0 ? plausible() : kAdversarial[below(std::size(kAdversarial))];
    }

    std::vector<double> several(std::size_t count, double (Numbers::*draw)()) {
        std::vector<double> values(count);
        for (double& value : values) value = (this->*draw)();
        return values;
    }

  private:
    std::mt19937_64 random_;
};

inline constexpr int kRounds = 2000;

inline double sum(const std::vector<double>& values) {
    double all = 0;
    for (const double value : values) all += value;
    return all;
}

inline bool all_finite(const std::vector<double>& values) {
    for (const double value : values) {
        if (!std::isfinite(value)) return false;
    }
    return true;
}

}  // namespace control_test
