// PathBook: what timed reads between the ranks of a group said lately. Stage S211.

#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "fabricd/telemetry/sample.hpp"

namespace fabricd {

/// Sessions count their timed reads in their pages; PathBook takes the differences between two
/// samples as observations and keeps the last kObservations of each path. Used by one thread.
class PathBook {
  public:
    /// Enough for a median that one odd read does not move; the p99 is close to the slowest.
    static constexpr std::size_t kObservations = 64;

    /// Takes what is new in the sample of a session. A page that starts from zero again is noticed
    /// by counters that fell. Only members count: others could claim any path.
    void look(const SessionSample& session);

    /// Forgets paths whose session is not in `sessions` (by id), as when a job ended.
    void keep(const std::vector<SessionSample>& sessions);

    /// All paths with observations, by group, from and to.
    std::vector<PathSample> paths() const;

  private:
    struct Counters {
        std::uint64_t reads = 0;
        std::uint64_t bytes = 0;
        std::int64_t ns = 0;
        std::int64_t latency_ns = 0;
    };
    struct Path {
        Counters last;
        std::vector<float> rates;  // bytes per second; a ring once it is full
        std::vector<float> latencies;
        std::size_t next = 0;
    };
    struct Reader {
        std::uint64_t page_number = 0;
        std::uint64_t group_id = 0;
        int rank = -1;
        std::vector<Path> to;
    };

    static void observe(Path& path, const Counters& now);

    std::map<std::uint64_t, Reader> readers_;  // by session
};

}  // namespace fabricd
