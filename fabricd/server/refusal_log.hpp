// RefusalLog: one line per refusal (or whatever clients can bring about), until a client makes a
// flood of them.

#pragma once

#include "fabricd/pool/ids.hpp"

namespace fabricd {

/// At most kBurst lines at once and kPerSecond over time; what was left out is counted in the next
/// line. Used by the control thread only.
class RefusalLog {
  public:
    static constexpr int kBurst = 50;
    static constexpr int kPerSecond = 10;

    /// `what` is the request, "arena_open"; `pid` and `uid` say whose.
    void refused(const char* what, int pid, unsigned uid, const Error& error, TimePoint now);

    /// Whether a line may be written now. Takes one off the budget.
    bool admits(TimePoint now);

    /// The same, for a caller that writes the line: says before it how many `things` ("refusals")
    /// were left out since the last one.
    bool begins_line(const char* things, TimePoint now);

  private:
    int budget_ = kBurst;
    long left_out_ = 0;
    TimePoint refilled_{};
};

}  // namespace fabricd
