// What a task manager writes on its terminal: the lines of ranks, and its own. Never for longer
// than it may: signals and time limits have to get through to it.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fabricd/jobs/rank_output.hpp"

namespace fabricd {

/// `timeout_ms` of each call: so long a piece waits at most (-1: for a signal). What does not go
/// out is dropped here, the logs have it.
class JobScreen {
  public:
    /// `is_shown` false: a job of the queue, which has none. A signal (`signals` is readable) ends
    /// a write that waits.
    JobScreen(bool is_shown, int signals) : is_shown_(is_shown), signals_(signals) {}

    /// A line of fabricctl's own.
    void say(const std::string& text, int timeout_ms);

    void set_ranks(std::size_t count);
    /// Of a rank that starts: what it said before is not its last lines.
    void forget(unsigned rank);
    void add(unsigned rank, bool is_error, std::string_view text, int timeout_ms);
    /// What a rank that has ended wrote without an end of line.
    void finish(unsigned rank, int timeout_ms);
    /// Its last 20 lines, with where the others are.
    void show_last(unsigned rank, const std::string& log, int timeout_ms);

    /// From now on a terminal that does not take a piece within a second takes no other one.
    void hurry() { is_hurried_ = true; }

  private:
    struct Rank {
        LastLines last;
        LinePrefixer lines[2];  // of its two outputs
    };

    void write(int fd, std::string_view text, int timeout_ms);
    std::string prefix(std::size_t rank) const;

    bool is_shown_;
    int signals_;
    bool is_hurried_ = false;
    bool is_stuck_ = false;
    std::vector<Rank> ranks_;
};

}  // namespace fabricd
