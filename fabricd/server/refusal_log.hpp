// RefusalLog: one line per refusal (or whatever clients can bring about), until a client makes a
// flood of them.

#pragma once

#include "fabricd/pool/ids.hpp"

namespace fabricd {

/// At most kBurst lines at once and kPerSecond over time; what was left out is counted in a line of
/// its own, as soon as one may be written again. Used by the control thread only.
class RefusalLog {
  public:
    static constexpr int kBurst = 50;
    static constexpr int kPerSecond = 10;

    /// `things` is what the lines are about, many of them: "refusals".
    explicit RefusalLog(const char* things = "refusals") noexcept : things_(things) {}

    /// `what` is the request, "arena_open"; `pid` and `uid` say whose.
    void refused(const char* what, int pid, unsigned uid, const Error& error, TimePoint now);

    /// Whether a line may be written now. Takes one off the budget.
    bool admits(TimePoint now);

    /// The same, for a caller that writes the line: says before it how many were left out.
    bool begins_line(TimePoint now);

    /// To be called now and then: says how many were left out when no other line follows.
    void tell_left_out(TimePoint now);

  private:
    void refill(TimePoint now);

    const char* things_;
    int budget_ = kBurst;
    long left_out_ = 0;
    TimePoint refilled_{};
};

/// The lines that clients bring about, each kind with a budget of its own.
struct ClientLog {
    RefusalLog refusals{"refusals"};
    RefusalLog stalls{"disconnected or stalled sessions"};
    RefusalLog endings{"ends of sessions"};  // as fast as clients say hello and goodbye
    RefusalLog traces{"sessions with records in a trace that can't be"};

    void tell_left_out(TimePoint now);
};

}  // namespace fabricd
