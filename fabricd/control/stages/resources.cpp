#include "fabricd/control/stages/resources.hpp"

#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

std::optional<std::vector<double>> resource_strategy(std::span<const double> speeds,
                                                     std::span<const double> responses,
                                                     double usual_s,
                                                     const ResourceWeights& weights) {
    if (!usable(speeds) || !usable(responses) || speeds.size() != responses.size()) {
        return std::nullopt;
    }
    if (!usable(weights.capability) || !usable(weights.response)) return std::nullopt;
    const double fastest = largest_of(speeds);
    if (fastest <= 0 || !usable(usual_s) || usual_s <= 0) return std::nullopt;
    std::vector<double> strategy;
    for (std::size_t i = 0; i < speeds.size(); ++i) {
        strategy.push_back(std::pow(speeds[i] / fastest, weights.capability) /
                           std::pow(1 + responses[i] / usual_s, weights.response));
    }
    return usable(strategy) ? std::optional(strategy) : std::nullopt;
}

}  // namespace fabricd
