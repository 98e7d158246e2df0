#include "fabricd/control/stages/data_flow.hpp"

#include <cmath>

#include "fabricd/control/stages/apportion.hpp"
#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

std::optional<std::vector<double>> balanced_shares(std::span<const double> speeds,
                                                   std::span<const double> fixed, double floor) {
    if (!usable(speeds) || !usable(fixed) || !usable(floor) || floor >= 1) return std::nullopt;
    if (speeds.size() != fixed.size() || largest_of(speeds) <= 0) return std::nullopt;
    std::vector<char> open(speeds.size());
    double working = 0;
    for (std::size_t i = 0; i < speeds.size(); ++i) {
        open[i] = speeds[i] > 0 ? 1 : 0;
        working += open[i];
    }
    const double least = floor / working;
    std::vector<double> shares(speeds.size(), 0);
    // A rank that would fall below the floor is put on it; the others then end together with what
    // is left, which may push another one below: at most as many rounds as there are ranks.
    for (bool again = true; again;) {
        again = false;
        double left = 1;
        std::vector<double> weights(speeds.size(), 0);
        for (std::size_t i = 0; i < speeds.size(); ++i) {
            if (open[i] != 0) weights[i] = speeds[i];
            if (open[i] != 0) left += fixed[i];
            if (open[i] == 0) left -= speeds[i] > 0 ? least : 0;
        }
        const std::vector<double> parts = shares_of(weights);
        for (std::size_t i = 0; i < speeds.size(); ++i) {
            if (open[i] == 0) continue;
            shares[i] = left * parts[i] - fixed[i];
            if (shares[i] >= least) continue;
            shares[i] = least;
            open[i] = 0;
            again = true;
        }
    }
    return usable(shares) ? std::optional(shares) : std::nullopt;
}

double moved_part(std::span<const double> before, std::span<const double> after) noexcept {
    double moved = 0;
    for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
        moved += std::abs(after[i] - before[i]) / 2;
    }
    return moved;
}

}  // namespace fabricd
