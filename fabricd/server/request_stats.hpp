// RequestStats: how long the daemon took for requests, by type, and how it answered.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "fabricd/telemetry/metrics_text.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

/// Counts on the control thread, a few tens of nanoseconds a request. What waits (an open, a join)
/// counts with the time until it was parked. Copied as a whole for the metrics.
class RequestStats {
  public:
    /// Upper ends of the buckets in seconds, from what a table look-up takes to a stall.
    static constexpr std::array<double, 8> kEnds{1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0};

    void count(fabricshm::proto::Type type, fabricshm::Duration took) noexcept;
    /// Likewise, for what the admin API, the metrics and the control loop ask for. `request` lives
    /// for ever.
    void count(const char* request, fabricshm::Duration took) noexcept;
    void refused(fabricshm::proto::Type type, fabricshm::Errc code) noexcept;

    /// The requests that were counted by name over there.
    void take_admin(const RequestStats& other) { named_ = other.named_; }

    /// fabricd_request_seconds and fabricd_refusals_total.
    void add_to(MetricsText& text) const;

  private:
    struct Times {
        std::array<std::uint64_t, kEnds.size() + 1> buckets{};
        double seconds = 0.0;
        void count(fabricshm::Duration took) noexcept;
        void add_to(const std::string& request, MetricsText& text) const;
    };
    // By number: what arrives is checked before it is counted, so there are as many as types.
    std::map<std::uint16_t, Times> times_;
    std::map<std::string_view, Times> named_;
    std::map<std::pair<std::uint16_t, fabricshm::Errc>, std::uint64_t> refusals_;
};

}  // namespace fabricd
