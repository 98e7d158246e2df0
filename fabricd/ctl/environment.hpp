// The environment variables of the project: one table for `fabricctl env`, and for the lint that
// finds any that the sources read and the table lacks.

#pragma once

#include <string>
#include <vector>

#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

struct EnvironmentVariable {
    const char* name;
    const char* reader;    // "library", "PyTorch", "vGPU", "fabricctl"
    const char* fallback;  // what holds without it
    const char* meaning;
};

const std::vector<EnvironmentVariable>& environment_variables();

/// With the values of this process, as a table and as one line of JSON.
std::string environment_text();
std::string environment_json();

/// fabricctl env.
CtlExit print_environment(const CtlOptions& options);

}  // namespace fabricd
