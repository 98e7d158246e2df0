// The rank that a wait was for and that did not come, in an Error that may be of anything.

#pragma once

#include "libfabricshm/base/result.hpp"

namespace fabricshm {

/// The steps of errors whose `detail` is that rank: kTimeout for the one that waited so long,
/// kBroken for the others, whose waits it ended.
inline constexpr const char* kPeerWaitStep = "wait for a peer";
inline constexpr const char* kPeerLateStep = "a rank did not come in time";

/// That rank; -1 for any other error: other times that ran out are no rank's.
int late_rank_of(const Error& error) noexcept;

}  // namespace fabricshm
