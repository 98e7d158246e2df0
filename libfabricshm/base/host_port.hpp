// HostPort: "host:port" as people write it.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fabricshm {

struct HostPort {
    std::string host;  // without brackets
    std::uint16_t port = 0;
};

/// "127.0.0.1:7400", "[::1]:7400", "host-a:7400". What the host is, a name or an address, is the
/// caller's to check. nullopt: it is neither, or the port is no number up to 65535.
std::optional<HostPort> parse_host_port(std::string_view text);

}  // namespace fabricshm
