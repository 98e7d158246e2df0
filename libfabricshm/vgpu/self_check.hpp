// Which functions of the installed driver could take memory or compute past the shim.

#pragma once

#include <string>
#include <vector>

namespace fabricshm::cuda {

/// Of `exports`, the names that allocate, import, launch or report sizes, are not in the table, and
/// were not examined and found harmless.
std::vector<std::string> uncovered(const std::vector<std::string>& exports);

/// With FABRIC_VGPU_CHECK=1 in the environment: says them, once.
void check_once_if_asked();

}  // namespace fabricshm::cuda
