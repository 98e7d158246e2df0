// History: what a page's curves are made of, for the last minutes.

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/picture.hpp"

namespace fabricd {

/// A ring of points, one per picture. Bounded: what a client can choose is the labels of jobs, and
/// of those it keeps kMaxSeries, the first to come. Not thread-safe.
class History {
  public:
    static constexpr std::size_t kMaxPoints = 600;
    static constexpr std::size_t kMaxSeries = 1000;

    /// `unix_ms` rises from call to call.
    void add(std::int64_t unix_ms, const Picture& picture);

    /// {"unix_ms": [...], "series": {"pool_used_bytes": [...], "samples_per_s/LABEL": [...], ...}}.
    /// Each list has as many elements as there are moments; null: not there then.
    Json json() const;

  private:
    struct Series {
        std::uint64_t first = 0;  // number of the point that values begins at
        std::deque<double> values;
    };
    void put(const std::string& name, double value);

    std::uint64_t first_ = 0;  // number of the oldest point
    std::deque<std::int64_t> moments_;
    std::map<std::string, Series> series_;
};

}  // namespace fabricd
