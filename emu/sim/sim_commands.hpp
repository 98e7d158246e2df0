// The commands of fabric-sim.

#pragma once

#include <string>
#include <variant>

#include "emu/sim/sim_options.hpp"

namespace emu {

struct SimFailure {
    int code = 1;
    std::string line;
};

/// Answers what the options ask.
std::variant<Report, SimFailure> run_sim_command(SimOptions options);

/// Prints the report in the wished form; false when it could not be written.
bool print_report(const Report& report, const SimOptions& options);

}  // namespace emu
