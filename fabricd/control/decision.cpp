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

// Memory and compute of a vGPU are one permission: who lets the loop have one of them lets it have
// the device.
const char* word_of(ActionKind kind) noexcept {
    switch (kind) {
        case ActionKind::kBatchShares:
            return "shares";
        case ActionKind::kWorkUnits:
            return "units";
        case ActionKind::kSyncInterval:
            return "sync";
        case ActionKind::kDrain:
            return "drain";
        case ActionKind::kPlacement:
            return "placement";
        case ActionKind::kQuota:
        case ActionKind::kComputeShare:
            return "quota";
        case ActionKind::kAlarm:
            break;
    }
    return "";
}

}  // namespace fabricd
