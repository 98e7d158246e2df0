// Which of libfabric's providers a group uses, and what it is asked for.

#pragma once

#include <rdma/fabric.h>

#include <string>

#include "libfabricshm/net/transport.hpp"

namespace fabricshm::net {

/// How well a provider suits, by its name; 0: not at all. Networks that write by themselves come
/// first, then TCP from the plain provider on.
int preference_of(const char* provider) noexcept;

/// Whether an endpoint's name is the address at which it takes TCP connections.
bool uses_tcp(const char* provider) noexcept;

/// The best provider at the interface of `address`, with RDM endpoints, RMA and writes in order.
/// Freed with fi_freeinfo(); nullptr: `error` says why. `wanted`: that provider and no other.
fi_info* choose_provider(const std::string& address, const std::string& wanted,
                         TransportError& error);

}  // namespace fabricshm::net
