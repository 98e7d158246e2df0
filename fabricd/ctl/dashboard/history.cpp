#include "fabricd/ctl/dashboard/history.hpp"

#include <charconv>
#include <cmath>
#include <limits>

#include "fabricd/ctl/json.hpp"
#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

constexpr double kNotThere = std::numeric_limits<double>::quiet_NaN();
constexpr std::string_view kRateOf = "samples_per_s/";
constexpr int kDigits = 7;  // more than a curve shows

std::string series_name(const JobSum& job) {
    return std::string(kRateOf) + std::to_string(job.uid) + "/" + job.label;
}

/// Of a name that the one above made.
bool is_asked_for(std::string_view name, const PictureQuery& query) {
    if (query.user) return name == series_name({.label = query.match, .uid = *query.user});
    return name.substr(name.find('/', kRateOf.size()) + 1).find(query.match) != name.npos;
}

void append_number(std::string& text, double value) {
    if (!std::isfinite(value)) {
        text += "null";
        return;
    }
    char digits[32];
    // Counts of bytes as they are: a page compares them with others.
    const auto end =
        value == std::floor(value) && std::abs(value) < 1e15
            ? std::to_chars(digits, digits + sizeof digits, static_cast<std::int64_t>(value))
            : std::to_chars(digits, digits + sizeof digits, value, std::chars_format::general,
                            kDigits);
    text.append(digits, end.ptr);
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

void History::add(std::int64_t unix_ms, const Picture& picture, const JobSums& sums) {
    moments_.push_back(unix_ms);
    put("pool_used_bytes", static_cast<double>(picture.status.pool.used_bytes));
    put("sessions", static_cast<double>(picture.status.sessions));
    if (sums.all.live != 0) put("samples_per_s", sums.all.samples_per_s);
    for (const auto& device : picture.telemetry.devices) {
        if (device.busy >= 0) put("busy/" + device.name, device.busy);
    }
    // Per job and not per rank: a job of many ranks is one curve.
    for (const JobSum& job : sums.jobs) {
        if (job.live != 0) put(series_name(job), job.samples_per_s);
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

std::string History::values_text(const Series& series) const {
    FABRIC_CHECK(series.first >= first_);  // add() has dropped what is older
    const std::size_t before = series.first - first_;
    std::string text = "[";
    for (std::size_t i = 0; i < moments_.size(); ++i) {
        const bool there = i >= before && i - before < series.values.size();
        if (i != 0) text += ',';
        append_number(text, there ? series.values[i - before] : kNotThere);
    }
    return text + "]";
}

std::string History::text(std::size_t bytes, const PictureQuery& query) const {
    const std::string end = "},\"all\":" + std::to_string(series_.size()) + "}";
    std::string text = "{\"unix_ms\":" + one_line(moments_) + ",\"series\":{";
    bool is_first = true;
    const auto add_those = [&](bool of_jobs) {
        for (const auto& [name, series] : series_) {
            const bool is_job = name.starts_with(kRateOf);
            if (is_job != of_jobs) continue;
            if (is_job && !is_asked_for(name, query)) continue;
            const std::string one = one_line(name) + ":" + values_text(series);
            if (text.size() + one.size() + 1 + end.size() > bytes) return;
            if (!is_first) text += ',';
            text += one;
            is_first = false;
        }
    };
    add_those(false);
    add_those(true);
    return text + end;
}

}  // namespace fabricd
