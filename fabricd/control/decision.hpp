// Decision: what the loop wants to be done, why, what it promised and what came of it. Plain data;
// it goes to the actuators, into the journal and to fabricctl.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fabricd {

enum class ActionKind : std::uint8_t {
    kBatchShares = 1,   // S113: `after` by rank, sums to 1
    kWorkUnits = 2,     // S223: `after` by rank, whole numbers
    kSyncInterval = 3,  // S313: `after` has one entry, steps
    kAlarm = 4,         // a rank stays slow: nothing is done
    kDrain = 5,         // its share becomes 0
    kPlacement = 6,     // S213: `names` are shards, `before` and `after` their nodes
    kQuota = 7,         // S322: `names` are vGPUs, values in bytes
    kComputeShare = 8,  // S422: `names` are vGPUs, values in per cent
    kPoolQuota = 9,     // S412: `names` are devices, values in bytes
    kReturn = 10,       // a drained rank gets a small share again, as a trial
};
inline constexpr int kActionKinds = 11;  // 0 is none

enum class Outcome : std::uint8_t {
    kPending = 0,     // on probation
    kKept = 1,        // as good as promised
    kUndone = 2,      // worse than promised: taken back
    kUnjudged = 3,    // something else changed meanwhile, or nobody acted on it
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
    ActionKind kind = ActionKind::kAlarm;
    std::uint64_t arena = 0, group = 0;  // of a job; 0: not about one
    std::string device;                  // of quotas; "": not about one
    std::vector<std::string> names;
    std::vector<double> before, after;
    std::int32_t rank = -1;    // of an alarm, a drain and a return
    double objective = 0;      // before, in samples/s of the job corrected for its imbalance
    double promised = 0;       // the same afterwards
    double gain = 0;           // predicted, a share
    double cost_s = 0;         // predicted, of acting
    std::uint64_t serial = 0;  // of the directives that carry it out; 0: none do
    std::uint64_t undoes = 0;  // the decision that this one takes back; 0: none
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

const char* name_of(ActionKind kind) noexcept;  // "batch shares"
const char* name_of(Outcome outcome) noexcept;  // "kept"
const char* word_of(ActionKind kind) noexcept;  // as in control.actions; "" for an alarm

}  // namespace fabricd
