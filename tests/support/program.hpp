// Runs a program to its end and keeps what it said.

#pragma once

#include <string>
#include <utility>
#include <vector>

namespace test_support {

struct Output {
    int code = -1;    // exit code, 128 + signal when it was killed, -1 when it did not end in 5 min
    std::string out;  // standard output
    std::string error;
};

/// `words[0]` is the program's path. `environment` is added to this process's own; an empty value
/// removes the name. Standard input is empty.
Output run_program(const std::vector<std::string>& words,
                   const std::vector<std::pair<std::string, std::string>>& environment = {});

}  // namespace test_support
