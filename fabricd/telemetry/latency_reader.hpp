// LatencyReader: brings the latencies of one session's page into the sums of the host.
// docs/telemetry.md.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fabricd/telemetry/sample.hpp"
#include "libfabricshm/shm/latency_rows.hpp"

namespace fabricd {

/// Reads one telemetry page; used by one thread at a time. A session can write anything: what has
/// fallen, or rose by more than it can have done since the last read, is left out and counted.
class LatencyReader {
  public:
    /// Operations of one session in a second, at most: none takes less than 10 ns.
    static constexpr std::uint64_t kMaxPerSecond = 100'000'000;
    /// What the first read may find: a session has counted before it had a page.
    static constexpr std::uint64_t kMaxAtFirst = std::uint64_t{1} << 32;

    /// Adds what is new. Bounded; a few microseconds when there is something, one load otherwise.
    void read(const std::byte* page, std::int64_t now_ns, LatencySums& sums);

  private:
    std::uint64_t seen_ = 0;
    std::int64_t read_ns_ = 0;  // 0: never
    std::uint64_t used_ = 0;
    std::uint64_t failures_[fabricshm::kLatencyKinds]{};
    std::vector<fabricshm::LatencyRow> rows_;  // of the bits of used_, in their order
};

}  // namespace fabricd
