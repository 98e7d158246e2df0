// `fabric-data serve`: the process around a DataService.

#pragma once

#include <string>

#include "fabricd/data/data_spec.hpp"

namespace fabricd {

struct ServeOptions {
    DataSpec spec;
    std::string socket;  // of the data service; "": default_data_socket()
    std::string daemon;  // fabricd's attach socket; "": its usual places
};

/// Serves until SIGTERM or SIGINT. The exit code: 0 ended on request, 1 failed, 2 a mistake in the
/// configuration.
int serve(const ServeOptions& options);

}  // namespace fabricd
