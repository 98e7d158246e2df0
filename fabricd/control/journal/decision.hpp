// Decision: what the loop wants to be done, why, what it promised and what came of it. Plain data;
// it goes to the actuators, into the journal and to fabricctl.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabricd/control/journal/action.hpp"

namespace fabricd {

enum class Outcome : std::uint8_t {
    kPending = 0,     // on probation
    kKept = 1,        // as good as promised
    kUndone = 2,      // worse than promised: rolled back
    kUnjudged = 3,    // something else changed meanwhile, or no rank acted on it
    kFailed = 4,      // the actuator refused
    kNotApplied = 5,  // dry run
    kDone = 6,        // takes effect by itself: alarms, and the taking back of an action
};

/// One number that went into a decision: "S112 imbalance = 0.31" or "S113 rank 2 share = 0.18".
struct Fact {
    std::string stage;  // "S112"
    std::string name;
    double value = 0;
    std::string unit;  // "s", "samples/s", "bytes", "steps", "" for none
    std::int32_t rank = -1;
};

struct Decision {
    std::uint64_t id = 0;      // 1, 2, ...: rises over restarts, too
    std::uint64_t window = 0;  // number of the window that it was made in
    std::int64_t unix_ms = 0;  // when; for people
    Action action;
    std::uint64_t arena = 0, group = 0;  // of a job; 0: not about one
    std::string device;                  // of quotas; "": not about one
    double objective = 0;      // before, in samples/s of the job corrected for its imbalance
    double promised = 0;       // the same afterwards
    double gain = 0;           // predicted, a share
    double cost_s = 0;         // predicted, of acting
    std::uint64_t serial = 0;  // of the directives that carry it out; 0: none do
    std::uint64_t undoes = 0;  // the decision that this one reverses; 0: none
    std::string reason;        // one line for people
    std::vector<Fact> facts;

    Outcome outcome = Outcome::kPending;
    double measured = 0;  // objective on probation; 0: none
    std::string outcome_reason;
};

/// What became of a decision, later.
struct DecisionOutcome {
    std::uint64_t id = 0;
    std::uint64_t window = 0;
    Outcome outcome = Outcome::kPending;
    double measured = 0;
    std::string reason;
};

inline ActionKind kind_of(const Decision& decision) noexcept {
    return kind_of(decision.action);
}

/// The action of a decision that is known to be of this kind; nullptr when it is of another one.
template <typename A>
const A* action_as(const Decision& decision) noexcept {
    return std::get_if<A>(&decision.action);
}
template <typename A>
A* action_as(Decision& decision) noexcept {
    return std::get_if<A>(&decision.action);
}

const char* name_of(ActionKind kind) noexcept;  // "batch shares"
const char* name_of(Outcome outcome) noexcept;  // "kept"

}  // namespace fabricd
