// The published arena of the data service, mapped with a session of its own.

#pragma once

#include "libfabricshm/client/data_client.hpp"
#include "libfabricshm/client/session.hpp"

namespace fabricshm {

/// Attaches to fabricd, once for each arena, and maps what the service has published there. Any
/// thread. kNotFound: nothing of that name is published (yet).
SubscribeArena subscriber_of(SessionOptions options);

}  // namespace fabricshm
