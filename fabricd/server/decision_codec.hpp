// Decisions as messages of admin.proto, in both directions. See admin_codec.hpp.

#pragma once

#include "admin.pb.h"
#include "fabricd/control/journal/decision.hpp"

namespace fabricd {

/// All of a decision, its facts included: the client shows `why` from the same message. Enumerators
/// travel as numbers, so that a client of another version shows "unknown" and not something else.
void pack(const Decision& decision, admin::v1::ControlDecision& message);
Decision unpack(const admin::v1::ControlDecision& message);

}  // namespace fabricd
