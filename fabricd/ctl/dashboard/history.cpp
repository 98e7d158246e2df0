#include "fabricd/ctl/dashboard/history.hpp"

#include <cmath>
#include <limits>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

constexpr double kNotThere = std::numeric_limits<double>::quiet_NaN();

// Per label and not per rank: a job of many ranks is one curve.
std::map<std::string, double> rates_of_jobs(const Sample& sample) {
    std::map<std::string, double> rates;
    for (const auto& session : sample.sessions) {
        if (!session.stale) rates[session.label] += session.rates.samples_per_s;
    }
    return rates;
}

}  // namespace

void History::put(const std::string& name, double value) {
    const std::uint64_t now = first_ + moments_.size() - 1;
    auto found = series_.find(name);
    if (found == series_.end()) {
        if (series_.size() == kMaxSeries) return;
        found = series_.emplace(name, Series{now, {}}).first;
    }
    Series& series = found->second;
    // It was away for some pictures.
    series.values.resize(now - series.first, kNotThere);
    series.values.push_back(value);
}

void History::add(std::int64_t unix_ms, const Picture& picture) {
    moments_.push_back(unix_ms);
    put("pool_used_bytes", static_cast<double>(picture.status.pool.used_bytes));
    put("sessions", static_cast<double>(picture.status.sessions));
    for (const auto& [label, rate] : rates_of_jobs(picture.telemetry)) {
        put("samples_per_s/" + label, rate);
    }
    for (const auto& device : picture.telemetry.devices) {
        if (device.busy >= 0) put("busy/" + device.name, device.busy);
    }
    if (moments_.size() <= kMaxPoints) return;
    moments_.pop_front();
    ++first_;
    for (auto each = series_.begin(); each != series_.end();) {
        Series& series = each->second;
        while (series.first < first_ && !series.values.empty()) {
            series.values.pop_front();
            ++series.first;
        }
        each = series.values.empty() ? series_.erase(each) : std::next(each);
    }
}

Json History::json() const {
    Json all = Json::object();
    for (const auto& [name, series] : series_) {
        FABRIC_CHECK(series.first >= first_);  // add() has dropped what is older
        const std::size_t before = series.first - first_;
        Json values = Json::array();
        for (std::size_t i = 0; i < moments_.size(); ++i) {
            const bool there = i >= before && i - before < series.values.size();
            const double value = there ? series.values[i - before] : kNotThere;
            values.push_back(std::isfinite(value) ? Json(value) : Json(nullptr));
        }
        all[name] = std::move(values);
    }
    return {{"unix_ms", moments_}, {"series", std::move(all)}};
}

}  // namespace fabricd
