#include "fabricd/control/s211_paths.hpp"

#include "fabricd/control/numbers.hpp"

namespace fabricd {

std::optional<PathRecord> path_record(const std::vector<PathReading>& readings) {
    std::vector<double> rates;
    std::vector<double> times;
    for (const PathReading& reading : readings) {
        // A read that took no time was not timed: the clock did not advance.
        const bool is_measured = usable(reading.bytes) && usable(reading.seconds) &&
                                 reading.bytes > 0 && reading.seconds > 0;
        const double rate = is_measured ? reading.bytes / reading.seconds : 0;
        if (!is_measured || !std::isfinite(rate)) continue;
        // Small reads say nothing about bandwidth, and large ones nothing about latency.
        if (reading.bytes <= kSmallReadBytes) {
            times.push_back(reading.seconds);
        } else {
            rates.push_back(rate);
        }
    }
    if (rates.empty() && times.empty()) return std::nullopt;
    PathRecord record;
    record.bandwidth = median_of(rates);
    record.bandwidth_tail = quantile_of(rates, 0.01);
    record.latency = median_of(times);
    record.latency_tail = quantile_of(times, 0.99);
    record.readings = rates.size() + times.size();
    return record;
}

}  // namespace fabricd
