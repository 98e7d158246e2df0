#include "fabricd/server/request_stats.hpp"

#include <algorithm>

#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

void RequestStats::count(proto::Type type, fabricshm::Duration took) noexcept {
    Times& times = times_[static_cast<std::uint16_t>(type)];
    const double seconds = std::chrono::duration<double>(took).count();
    const auto bucket = std::lower_bound(kEnds.begin(), kEnds.end(), seconds) - kEnds.begin();
    ++times.buckets[static_cast<std::size_t>(bucket)];
    times.seconds += seconds;
}

void RequestStats::refused(proto::Type type, fabricshm::Errc code) noexcept {
    // A number that a client made up is no type: without this it would be an entry of its own.
    const auto unknown = proto::Type{0};
    const bool known = proto::name_of(type) != proto::name_of(unknown);
    ++refusals_[{static_cast<std::uint16_t>(known ? type : unknown), code}];
}

void RequestStats::add_to(MetricsText& text) const {
    text.family("fabricd_request_seconds", MetricType::kHistogram,
                "Time of the control thread for a request.");
    for (const auto& [number, times] : times_) {
        const std::string type = proto::name_of(static_cast<proto::Type>(number));
        std::uint64_t so_far = 0;
        for (std::size_t i = 0; i < times.buckets.size(); ++i) {
            so_far += times.buckets[i];
            const std::string end = i < kEnds.size() ? metric_value(kEnds[i]) : "+Inf";
            text.part("_bucket", {{"request", type}, {"le", end}}, so_far);
        }
        text.part("_sum", {{"request", type}}, times.seconds);
        text.part("_count", {{"request", type}}, so_far);
    }
    text.family("fabricd_refusals_total", MetricType::kCounter,
                "Requests that were answered with an error.");
    for (const auto& [key, count] : refusals_) {
        text.sample({{"request", proto::name_of(static_cast<proto::Type>(key.first))},
                     {"error", fabricshm::name_of(key.second)}},
                    count);
    }
}

}  // namespace fabricd
