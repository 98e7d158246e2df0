// History: what a page's curves are made of, for the last minutes.

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "fabricd/ctl/dashboard/job_sums.hpp"
#include "fabricd/ctl/dashboard/picture_query.hpp"
#include "fabricd/ctl/picture.hpp"

namespace fabricd {

/// A ring of points, one per picture. Bounded: what a client can choose is the labels of jobs, and
/// of those it keeps kMaxSeries, the first to come. Not thread-safe.
class History {
  public:
    static constexpr std::size_t kMaxPoints = 600;
    static constexpr std::size_t kMaxSeries = 1000;

    /// `unix_ms` rises from call to call; `sums` are those of `picture`.
    void add(std::int64_t unix_ms, const Picture& picture, const JobSums& sums);

    /// {"unix_ms": [...], "series": {"pool_used_bytes": [...], "samples_per_s/UID/LABEL": [...],
    /// ...}, "all": N}. Each list has as many elements as there are moments; null: not there then.
    /// The series of the whole daemon come first, then those of the jobs that `query` asks for, as
    /// far as `bytes` reaches; "all": how many there are.
    std::string text(std::size_t bytes, const PictureQuery& query = {}) const;

  private:
    struct Series {
        std::uint64_t first = 0;  // number of the point that values begins at
        std::deque<double> values;
    };
    void put(const std::string& name, double value);
    std::string values_text(const Series& series) const;

    std::uint64_t first_ = 0;  // number of the oldest point
    std::deque<std::int64_t> moments_;
    std::map<std::string, Series> series_;
};

}  // namespace fabricd
