#include "fabricd/control/journal/decision.hpp"

namespace fabricd {

const char* name_of(ActionKind kind) noexcept {
    return info_of(kind).name;
}

// Names are for people, for labels of metrics and for JSON: none of them changes once released.
const char* name_of(Outcome outcome) noexcept {
    switch (outcome) {
        case Outcome::kPending:
            return "on probation";
        case Outcome::kKept:
            return "kept";
        case Outcome::kUndone:
            return "undone";
        case Outcome::kUnjudged:
            return "not judged";
        case Outcome::kFailed:
            return "failed";
        case Outcome::kNotApplied:
            return "dry run";
        case Outcome::kDone:
            return "done";
    }
    return "unknown";
}

}  // namespace fabricd
