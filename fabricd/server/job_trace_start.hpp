// Begins the trace of a job: which sessions are its, and what they need to write it.
// docs/tracing.md.

#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "fabricd/telemetry/job_trace.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/tick_clock.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

class Daemon;

/// Sessions of a job that are traced at most: those of the largest group. Each takes a ring of 260
/// KiB while the trace lasts.
inline constexpr std::size_t kTracedSessions = 256;

/// One trace at a time. Made when the daemon starts, since it measures the processor's counter from
/// then on; outlives every trace. Any thread.
class JobTraces {
  public:
    explicit JobTraces(Daemon& daemon) noexcept;

    /// Has the sessions of this host that have an arena called `job` open write what they do for
    /// `length` from now on. kNotFound: there is none; kBusy: a trace is on already; kNoMemory,
    /// kSystem from the system. Takes a turn of the control thread.
    fabricshm::Result<std::unique_ptr<JobTrace>> begin(const std::string& job,
                                                       fabricshm::Duration length);

  private:
    Daemon& daemon_;
    const fabricshm::TickMoment started_;
    std::atomic<bool> is_on_{false};
};

}  // namespace fabricd
