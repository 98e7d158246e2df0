#include "fabricd/telemetry/job_trace.hpp"

#include <utility>

namespace fabricd {

JobTrace::JobTrace(std::vector<TracedSession> sessions, const TraceSpan& span,
                   std::function<void()> end, std::function<bool()> is_alive) noexcept
    : sessions_(std::move(sessions)),
      span_(span),
      end_(std::move(end)),
      is_alive_(std::move(is_alive)) {}

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
        if (!records_.empty()) take(session, records_);
    }
}

}  // namespace fabricd
