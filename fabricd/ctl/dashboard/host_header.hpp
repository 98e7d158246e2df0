// The header Host: which name a request is for.

#pragma once

#include <optional>
#include <string_view>

namespace fabricd {

/// The name in "name", "name:port", "[::1]" or "[::1]:port", with its brackets; a port is a number
/// from 1 to 65535. nullopt: it is none of these, whatever it begins with. That the name is one of
/// a host is not looked at: it is compared with those that are known.
std::optional<std::string_view> name_of_host(std::string_view header);

/// Names of hosts have no case.
bool is_same_host_name(std::string_view a, std::string_view b);

}  // namespace fabricd
