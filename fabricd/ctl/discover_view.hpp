// What `fabricctl discover` prints.

#pragma once

#include <string>

#include "libfabricshm/machine/backend_choice.hpp"
#include "libfabricshm/machine/discovery.hpp"

namespace fabricd {

/// Tables and sentences, each line with its end. `machine`: what the daemon of this host emulates,
/// "" when it emulates nothing or there is none.
/// For people, and free to change; the JSON is for programs. Neither reads the host: what was found
/// is an argument, so that tests can make hosts up.
std::string discover_text(const fabricshm::Discovery& found, const fabricshm::BackendChoice& choice,
                          const std::string& machine = "");

/// One line without its end.
std::string discover_json(const fabricshm::Discovery& found, const fabricshm::BackendChoice& choice,
                          const std::string& machine = "");

}  // namespace fabricd
