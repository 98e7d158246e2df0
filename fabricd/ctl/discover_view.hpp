// What `fabricctl discover` prints.

#pragma once

#include <string>

#include "libfabricshm/machine/backend_choice.hpp"
#include "libfabricshm/machine/discovery.hpp"

namespace fabricd {

/// Tables and sentences, each line with its end.
std::string discover_text(const fabricshm::Discovery& found,
                          const fabricshm::BackendChoice& choice);

/// One line without its end.
std::string discover_json(const fabricshm::Discovery& found,
                          const fabricshm::BackendChoice& choice);

}  // namespace fabricd
