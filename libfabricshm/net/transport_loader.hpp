// Loads libfabricshm_net.so when the first group needs it.

#pragma once

#include <memory>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/net/transport.hpp"

namespace fabricshm::net {

/// Next to the library that this code is in, else where the system finds it; $FABRIC_NET_LIBRARY
/// comes first. It stays loaded. kUnsupported: it is not there, or no provider suits; explained.
Result<std::unique_ptr<Transport>> open_transport(const TransportSpec& spec);

}  // namespace fabricshm::net
