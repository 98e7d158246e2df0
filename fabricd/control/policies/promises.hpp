// Promises: what each user of a divided whole was promised, whatever it has been lent or has lent
// since; and what it has lately done with its part. For one thread, a tick of which is a window.

#pragma once

#include <map>
#include <span>
#include <string>

#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/journal/window.hpp"

namespace fabricd {

/// Of the users of one GPU, or of the devices of the pool.
class Promises {
  public:
    /// Completes a window: the promises, which are what the device file says until something
    /// besides the loop sets a quota or a share (then that is the promise), and what was used and
    /// missed of compute time lately: the most of some windows, which counts half after
    /// `half_life`. Bursts leave gaps that are no idleness.
    void complete(std::span<QuotaWindow> users, double half_life);

    /// The loop has decided this and has it carried out: what changes by it is lent, not promised.
    void note(const Decision& decision);

  private:
    /// What holds, as far as the loop knows. Until the next window it is not known whether a
    /// decision was carried out: both are the loop's doing then.
    struct Part {
        double promised = 0;
        double now = 0, before = 0;
    };
    struct User {
        Part memory, compute;
        double usage = 0, held_up = 0;
    };
    template <typename A>
    void note_action(const A& action);
    static double promise_of(Part& part, bool is_new, double promised, double now);

    // Also of those that a window leaves out: what people promised them holds on.
    std::map<std::string, User> users_;
};

}  // namespace fabricd
