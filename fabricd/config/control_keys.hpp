// The keys of section [control]. See control/control_config.hpp for what they mean to the loop.

#pragma once

#include <vector>

#include "fabricd/config/config.hpp"

namespace fabricd {

std::vector<ConfigKey> control_keys();

}  // namespace fabricd
