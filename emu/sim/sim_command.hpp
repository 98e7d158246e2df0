// One command of fabric-sim: a row from which its parsing, its --help and what runs it are made.

#pragma once

#include <span>
#include <string>
#include <variant>

#include "emu/sim/sim_options.hpp"

namespace CLI {
class App;
}

namespace emu {

struct SimTexts;

struct SimFailure {
    int code = 1;
    std::string line;
};
using SimOutcome = std::variant<Report, SimFailure>;

struct SimCommand {
    const char* name;
    const char* help;
    void (*add_flags)(CLI::App& command, SimOptions& options, SimTexts& texts);
    SimOutcome (*run)(SimOptions& options);
};

/// In the order of --help.
std::span<const SimCommand> sim_commands() noexcept;

/// nullptr: there is none of that name.
const SimCommand* find_sim_command(const std::string& name) noexcept;

}  // namespace emu
