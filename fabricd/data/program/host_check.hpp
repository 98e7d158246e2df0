// What a data file asks of the host besides silos and the spill: its group, and its folder for
// state.

#pragma once

#include <string>
#include <vector>

#include "fabricd/data/data_spec.hpp"

namespace fabricd {

struct HostProblem {
    int line = 0;  // of the file
    std::string problem;
};

/// Nothing: all is there.
std::vector<HostProblem> check_host(const DataSpec& spec);

/// "FILE:LINE: PROBLEM", a line for each.
std::string as_text(const std::vector<HostProblem>& problems, const std::string& file);

}  // namespace fabricd
