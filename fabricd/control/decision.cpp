#include "fabricd/control/decision.hpp"

namespace fabricd {

// Names are for people, for labels of metrics and for JSON: none of them changes once released.
const char* name_of(ActionKind kind) noexcept {
    switch (kind) {
        case ActionKind::kBatchShares:
            return "batch shares";
        case ActionKind::kWorkUnits:
            return "work units";
        case ActionKind::kSyncInterval:
            return "sync interval";
        case ActionKind::kAlarm:
            return "alarm";
        case ActionKind::kDrain:
            return "drain";
        case ActionKind::kPlacement:
            return "placement";
        case ActionKind::kQuota:
            return "quota";
        case ActionKind::kComputeShare:
            return "compute share";
        case ActionKind::kPoolQuota:
            return "pool quota";
        case ActionKind::kReturn:
            return "return";
    }
    return "unknown";  // of a journal that a newer daemon wrote
}

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

// Memory and compute of a vGPU are two permissions: a quota grows where memory was refused, which
// nobody minds; a compute share is time that one tenant has and another one loses.
const char* word_of(ActionKind kind) noexcept {
    switch (kind) {
        case ActionKind::kBatchShares:
            return "shares";
        case ActionKind::kWorkUnits:
            return "units";
        case ActionKind::kSyncInterval:
            return "sync";
        case ActionKind::kDrain:
        case ActionKind::kReturn:
            return "drain";
        case ActionKind::kPlacement:
            return "placement";
        case ActionKind::kQuota:
            return "quota";
        case ActionKind::kComputeShare:
            return "compute";
        case ActionKind::kPoolQuota:
            return "pool";
        case ActionKind::kAlarm:
            break;
    }
    return "";
}

}  // namespace fabricd
