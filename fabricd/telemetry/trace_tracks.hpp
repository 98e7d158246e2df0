// TraceTracks: which records of a session can be, after those that came before.
// docs/tracing.md#what-is-lost.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "libfabricshm/shm/trace_ring.hpp"

namespace fabricd {

/// From when to when a trace is, and how its times compare with those of people.
struct TraceSpan {
    std::int64_t began_ns = 0;  // CLOCK_MONOTONIC, as the records
    std::int64_t until_ns = 0;
    std::int64_t unix_ns = 0;  // what the wall clock said at `began_ns`
};

/// The operations of one session in one group, so far.
struct TraceTrack {
    std::uint16_t rank = 0;
    std::uint16_t world = 0;  // 0: there is none yet
    std::int64_t end_ns = 0;  // of the last one
    std::uint64_t next_epoch = 0;
};

enum class TraceVerdict { kFits, kImpossible, kNoTrack };

/// Of one session; bounded, whatever it writes. Not thread-safe.
class TraceTracks {
  public:
    /// Groups of a session that get a track. Programs have a few; one may have more.
    static constexpr std::size_t kMaxTracks = 64;

    struct Place {
        TraceVerdict verdict = TraceVerdict::kImpossible;
        TraceTrack before;  // of a record that fits: its track until now
    };

    /// kImpossible: no honest session writes this in a trace of this span, after what it wrote
    /// before. kNoTrack: it would be one group too many. One that fits is the last of its track
    /// from now on.
    Place place(const fabricshm::TraceRecord& record, const TraceSpan& span);

    std::size_t size() const noexcept { return tracks_.size(); }

  private:
    std::map<std::uint64_t, TraceTrack> tracks_;  // by group
};

}  // namespace fabricd
