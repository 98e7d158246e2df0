// Event queue: what happens when, in the order of time and then of scheduling.

#pragma once

#include <cstdint>
#include <vector>

namespace emu {

/// Simulated time and lengths of it. Doubles: 2^53 nanoseconds are three months, and the events of
/// one run lie far closer together.
using Seconds = double;

struct Event {
    Seconds at = 0;
    std::uint64_t order = 0;  // of scheduling; decides between events of the same time
    int kind = 0;             // of the owner's own numbering
    int who = 0;              // likewise, mostly a rank
};

/// The future of one simulation. Single-threaded. Events of the same time come out in the order in
/// which they went in, so that the same input always gives the same run.
class EventQueue {
  public:
    /// `at` must not lie before now(): an event in the past is a bug of the caller and aborts.
    void schedule(Seconds at, int kind, int who);

    bool empty() const noexcept { return heap_.empty(); }
    /// When the next event is due; infinity when there is none.
    Seconds next_at() const noexcept;
    /// Takes the next event out and moves now() to it. Not on an empty queue.
    Event pop();

    /// Moves the clock without an event, for what is computed elsewhere (Fluid).
    void move_to(Seconds now);
    Seconds now() const noexcept { return now_; }
    /// Events taken out so far: the cost of a run.
    std::uint64_t popped() const noexcept { return popped_; }

  private:
    std::vector<Event> heap_;
    Seconds now_ = 0;
    std::uint64_t scheduled_ = 0;
    std::uint64_t popped_ = 0;
};

}  // namespace emu
