#include "fabricd/control/s222_resources.hpp"

#include "fabricd/control/numbers.hpp"

namespace fabricd {

std::optional<std::vector<double>> resource_strategy(std::span<const double> speeds,
                                                     std::span<const double> responses,
                                                     const ResourceWeights& weights) {
    if (!usable(speeds) || !usable(responses) || speeds.size() != responses.size()) {
        return std::nullopt;
    }
    if (!usable(weights.capability) || !usable(weights.response)) return std::nullopt;
    const double fastest = largest_of(speeds);
    if (fastest <= 0) return std::nullopt;
    const double usual = median_of({responses.begin(), responses.end()});
    std::vector<double> strategy;
    for (std::size_t i = 0; i < speeds.size(); ++i) {
        // Where most answer at once there is nothing to compare a slow answer with but itself.
        const double late = usual > 0 ? responses[i] / usual : responses[i] > 0 ? 1 : 0;
        strategy.push_back(std::pow(speeds[i] / fastest, weights.capability) /
                           std::pow(1 + late, weights.response));
    }
    return usable(strategy) ? std::optional(strategy) : std::nullopt;
}

}  // namespace fabricd
