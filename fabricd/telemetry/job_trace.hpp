// JobTrace: the operations of a job's sessions while they are traced. docs/tracing.md.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fabricd/telemetry/trace_tracks.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/shm/trace_ring.hpp"

namespace fabricd {

/// One session that is traced. Its records are its own word, tamed; the rest is the daemon's.
struct TracedSession {
    std::uint64_t session_id = 0;
    std::int32_t pid = 0;
    std::string label;
    fabricshm::Mapping ring;  // read-only here
    fabricshm::TraceReader reader;
    TraceTracks tracks = {};
    std::uint64_t misplaced = 0;  // records that make sense each, and not where they are

    /// Records that can't be, and were left out.
    std::uint64_t impossible() const noexcept { return reader.senseless() + misplaced; }
};

/// Used by one thread. What sessions wrote stays readable when they have ended.
class JobTrace {
  public:
    /// `end` is called once, by end() or when this goes: it stops the sessions from writing.
    /// `is_alive` says whether any of the sessions can still write. `warn` gets lines for the log.
    JobTrace(std::vector<TracedSession> sessions, const TraceSpan& span, std::function<void()> end,
             std::function<bool()> is_alive,
             std::function<void(const std::string& line)> warn) noexcept;
    ~JobTrace();
    JobTrace(const JobTrace&) = delete;
    JobTrace& operator=(const JobTrace&) = delete;

    /// Ends it before it goes, so that another trace can be taken. Any thread, also while another
    /// one is in read().
    void end() noexcept;

    const TraceSpan& span() const noexcept { return span_; }
    /// Takes a turn of the control thread.
    bool is_alive() const { return is_alive_(); }
    const std::vector<TracedSession>& sessions() const noexcept { return sessions_; }

    /// Calls `take` with what each session has written since the last call, if anything, but for
    /// records that can't be. Bounded: a ring of each at most.
    void read(const std::function<void(const TracedSession& session,
                                       const std::vector<fabricshm::TraceRecord>& records)>& take);

    /// One line for each session that wrote records that can't be.
    void warn_of_impossible() const;

  private:
    std::vector<TracedSession> sessions_;
    TraceSpan span_;
    std::function<void()> end_;
    std::atomic<bool> has_ended_{false};
    std::function<bool()> is_alive_;
    std::function<void(const std::string&)> warn_;
    std::vector<fabricshm::TraceRecord> records_;  // kept for its memory
};

}  // namespace fabricd
