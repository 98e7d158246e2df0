#include "fabricd/control/stages/vgpu.hpp"

#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

namespace {

bool is_sound(std::span<const VgpuReading> readings, const VgpuWeights& weights) {
    for (const VgpuReading& reading : readings) {
        const double inputs[] = {reading.quota, reading.used,  reading.denied,
                                 reading.speed, reading.delay, reading.busy};
        if (!usable(inputs)) return false;
    }
    const double inputs[] = {weights.filled, weights.speed, weights.delay,
                             weights.busy,   weights.step,  weights.unit};
    return usable(inputs) && weights.filled > 0;
}

double wanted_quota(const VgpuReading& reading, const VgpuWeights& weights) {
    // V times E, written out: the product is also right for a quota of 0, of which E has none.
    const double demand = (reading.used + reading.denied) / weights.filled;
    // Memory is worth more where it is computed with faster, and less on a node that is late or
    // that others keep busy anyway.
    const double worth = std::pow(reading.speed, weights.speed) /
                         ((1 + weights.delay * reading.delay) * (1 + weights.busy * reading.busy));
    const double most = std::max(weights.step * reading.quota, weights.unit);
    const double quota =
        std::clamp(demand * worth, std::max(reading.quota - most, 0.0), reading.quota + most);
    return std::max(quota, reading.used);
}

}  // namespace

std::optional<std::vector<double>> vgpu_demands(std::span<const VgpuReading> readings,
                                                const VgpuWeights& weights) {
    if (!is_sound(readings, weights)) return std::nullopt;
    std::vector<double> demands;
    for (const VgpuReading& reading : readings) demands.push_back(wanted_quota(reading, weights));
    return usable(demands) ? std::optional(demands) : std::nullopt;
}

}  // namespace fabricd
