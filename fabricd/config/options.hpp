// The command line of fabricd.

#pragma once

#include <string>

#include "fabricd/config/completion.hpp"
#include "fabricd/config/config.hpp"

namespace fabricd {

/// What the command line asks for. `config` is complete when parse_options() had no error message
/// and none of the flags that only print something is set.
struct Options {
    Config config;            // defaults, then the file, then the command line
    std::string config_file;  // "" when none was read
    bool print_config = false;
    bool list_presets = false;         // --emulate list
    bool print_config_table = false;   // for docs/configuration.md
    bool print_config_manual = false;  // for docs/man/fabricd.toml.5
    std::string completion;            // a shell, "" when it is not asked for
    bool help = false;
    int argc = 0;  // the command line itself, to read the file again on SIGHUP
    const char* const* argv = nullptr;
    bool version = false;
};

/// Reads the command line and the file it names (or the usual one). `options` is filled in as far
/// as it went.
ErrorMessage parse_options(int argc, const char* const* argv, Options& options);

/// The text of --help.
std::string help_text();

/// The options for the completion of a shell, from the same table.
CompletedProgram completed_program();

}  // namespace fabricd
