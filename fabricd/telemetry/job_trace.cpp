#include "fabricd/telemetry/job_trace.hpp"

#include <utility>

namespace fabricd {

JobTrace::JobTrace(std::vector<TracedSession> sessions, const TraceSpan& span,
                   std::function<void()> end, std::function<bool()> is_alive,
                   std::function<void(const std::string&)> warn) noexcept
    : sessions_(std::move(sessions)),
      span_(span),
      end_(std::move(end)),
      is_alive_(std::move(is_alive)),
      warn_(std::move(warn)) {}

JobTrace::~JobTrace() {
    end();
}

void JobTrace::end() noexcept {
    // Relaxed: it decides alone which of two callers ends the trace, and guards nothing else.
    if (has_ended_.exchange(true, std::memory_order_relaxed)) return;
    if (end_) end_();
}

void JobTrace::read(const std::function<void(const TracedSession&,
                                             const std::vector<fabricshm::TraceRecord>&)>& take) {
    for (TracedSession& session : sessions_) {
        records_.clear();
        session.reader.read(records_);
        // One group too many is none of this: its records are the client's to leave out.
        session.misplaced += std::erase_if(records_, [&](const fabricshm::TraceRecord& record) {
            return session.tracks.place(record, span_).verdict == TraceVerdict::kImpossible;
        });
        if (!records_.empty()) take(session, records_);
    }
}

void JobTrace::warn_of_impossible() const {
    for (const TracedSession& session : sessions_) {
        if (session.impossible() == 0) continue;
        warn_("trace: session " + std::to_string(session.session_id) + " (pid " +
              std::to_string(session.pid) + ") wrote records that can't be; " +
              std::to_string(session.impossible()) + " of them were left out");
    }
}

}  // namespace fabricd
