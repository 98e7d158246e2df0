// Variables of the environment.

#pragma once

#include <cstdint>
#include <string>

namespace fabricshm::torch_backend {

/// Unset and empty are the same.
std::string environment(const char* name);

/// Digits and a binary unit, as fabricd takes them; 0 when it is unset. Raises when it is neither.
std::uint64_t bytes_in_environment(const char* name);

}  // namespace fabricshm::torch_backend
