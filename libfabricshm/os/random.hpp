// Random bytes for tokens and ids, from the kernel.

#pragma once

#include <cstddef>
#include <span>

#include "libfabricshm/base/result.hpp"

namespace fabricshm {

/// Fills `bytes` with unpredictable ones. Fails only where getrandom() is forbidden.
Result<void> fill_random(std::span<std::byte> bytes);

}  // namespace fabricshm
