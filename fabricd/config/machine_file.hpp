// Machines to emulate: presets by name, others from TOML files. docs/emulator.md has the format.

#pragma once

#include <string>

#include "emu/memory/machine.hpp"
#include "fabricd/config/config.hpp"

namespace fabricd {

/// Reads the text of a machine file. `file` goes in front of error messages, with the line.
ErrorMessage read_machine(const std::string& text, const std::string& file,
                          emu::EmulatedMachine& machine);

/// The machine that a preset's name or the path of a machine file stands for.
/// A path has a slash or ends in .toml; everything else is a preset's name, so that a misspelt
/// preset is not taken for a missing file.
ErrorMessage find_machine(const std::string& name_or_path, emu::EmulatedMachine& machine);

/// "10.1GB/s" (also MB/s, kB/s, B/s; powers of 1000, as link rates are) in bytes per second.
std::optional<double> parse_bandwidth(const std::string& text);

}  // namespace fabricd
