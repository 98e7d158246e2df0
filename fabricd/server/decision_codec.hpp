// Decisions as messages of admin.proto, in both directions. See admin_codec.hpp.

#pragma once

#include "admin.pb.h"
#include "fabricd/control/decision.hpp"

namespace fabricd {

void pack(const Decision& decision, admin::v1::ControlDecision& message);
Decision unpack(const admin::v1::ControlDecision& message);

}  // namespace fabricd
