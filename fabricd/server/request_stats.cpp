#include "fabricd/server/request_stats.hpp"

#include <algorithm>

#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

void RequestStats::Times::count(fabricshm::Duration took) noexcept {
    const double length = std::chrono::duration<double>(took).count();
    const auto bucket = std::lower_bound(kEnds.begin(), kEnds.end(), length) - kEnds.begin();
    ++buckets[static_cast<std::size_t>(bucket)];
    seconds += length;
}

void RequestStats::Times::add_to(const std::string& request, MetricsText& text) const {
    std::uint64_t so_far = 0;
    for (std::size_t i = 0; i < buckets.size(); ++i) {
        so_far += buckets[i];
        const std::string end = i < kEnds.size() ? metric_value(kEnds[i]) : "+Inf";
        text.part("_bucket", {{"request", request}, {"le", end}}, so_far);
    }
    text.part("_sum", {{"request", request}}, seconds);
    text.part("_count", {{"request", request}}, so_far);
}

void RequestStats::count(proto::Type type, fabricshm::Duration took) noexcept {
    times_[static_cast<std::uint16_t>(type)].count(took);
}

void RequestStats::count(const char* request, fabricshm::Duration took) noexcept {
    named_[request].count(took);
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
        times.add_to(proto::name_of(static_cast<proto::Type>(number)), text);
    }
    for (const auto& [request, times] : named_) times.add_to(std::string(request), text);
    text.family("fabricd_refusals_total", MetricType::kCounter,
                "Requests that were answered with an error.");
    for (const auto& [key, count] : refusals_) {
        text.sample({{"request", proto::name_of(static_cast<proto::Type>(key.first))},
                     {"error", fabricshm::name_of(key.second)}},
                    count);
    }
}

}  // namespace fabricd
