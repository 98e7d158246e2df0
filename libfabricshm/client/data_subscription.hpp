// The published arena of the data service, mapped with a session of its own.

#pragma once

#include "libfabricshm/client/data_client.hpp"
#include "libfabricshm/client/session.hpp"

namespace fabricshm {

/// Attaches to fabricd, when it is first asked and again when that session has ended, and maps
/// what the service has published there. One thread at a time.
SubscribeArena subscriber_of(SessionOptions options);

}  // namespace fabricshm
