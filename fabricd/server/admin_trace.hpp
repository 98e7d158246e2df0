// The part of the admin API that is about traces.

#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "admin.pb.h"
#include "fabricd/telemetry/job_trace.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// How often the control thread is asked whether a trace's job is still there.
inline constexpr std::chrono::milliseconds kAliveEvery(1000);

/// Sends what the sessions of a trace write until it is over, the last of them has ended, `write`
/// fails or `pause`, which waits for so long, says that the client or the daemon goes. Afterwards
/// the trace warns of sessions that wrote what can't be.
void write_trace(JobTrace& trace,
                 const std::function<bool(const admin::v1::TraceReply& reply)>& write,
                 const std::function<bool(std::chrono::milliseconds)>& pause,
                 std::chrono::milliseconds alive_every = kAliveEvery);

/// How long a client may take for one reply.
inline constexpr std::chrono::seconds kMaxTraceStall(5);

/// Ends the call of a client that takes nothing (it is stopped, or hangs): until then it would have
/// the one trace that there is. Used by the thread that writes to the client; has one of its own.
class StallWatch {
  public:
    /// `cancel` is called once, on another thread, when a write takes longer than `longest`.
    StallWatch(std::chrono::milliseconds longest, std::function<void()> cancel);
    ~StallWatch();
    StallWatch(const StallWatch&) = delete;
    StallWatch& operator=(const StallWatch&) = delete;

    /// What `write` says, which is watched meanwhile.
    bool watch(const std::function<bool()>& write);

  private:
    void run();

    const std::chrono::milliseconds longest_;
    const std::function<void()> cancel_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    bool stopping_ = false;
    bool is_writing_ = false;
    fabricshm::TimePoint until_{};
    std::thread thread_;
};

}  // namespace fabricd
