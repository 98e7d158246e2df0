#include "fabricd/control/stages/imbalance.hpp"

#include <cmath>

#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

std::optional<Imbalance> imbalance_of(std::span<const double> compute_s) {
    if (compute_s.empty() || !usable(compute_s)) return std::nullopt;
    const double largest = largest_of(compute_s);
    if (largest <= 0) return Imbalance{};
    // In units of the largest, so that neither the sum nor a square can overflow.
    const auto count = static_cast<double>(compute_s.size());
    double sum = 0;
    for (const double c : compute_s) sum += c / largest;
    const double mean = sum / count;
    double squares = 0;
    for (const double c : compute_s) squares += (c / largest - mean) * (c / largest - mean);
    return Imbalance{std::max(1 - mean, 0.0), std::sqrt(squares / count) / mean};
}

}  // namespace fabricd
