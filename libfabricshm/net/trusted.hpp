// Which network a group of several hosts may use. TCP between pools is neither encrypted nor
// authenticated: it has to be allowed by name.

#pragma once

#include <string>

#include "libfabricshm/base/result.hpp"

namespace fabricshm::net {

inline constexpr const char* kTrustedVariable = "FABRIC_NET_TRUSTED";
inline constexpr const char* kProviderVariable = "FABRIC_NET_PROVIDER";
inline constexpr const char* kRingVariable = "FABRIC_NET_RING";

/// Whether `address` lies in `network`, as in "10.1.2.3" and "10.0.0.0/8", "fd00::1" and
/// "fd00::/8". kInvalid when one of them is no such text.
Result<bool> lies_in(const std::string& address, const std::string& network);

/// The first address of this host's interfaces that are up, in the order of the list, which has
/// networks and commas. kDenied: the list is empty, or no address is in it; explained.
Result<std::string> trusted_address(const std::string& networks);

}  // namespace fabricshm::net
