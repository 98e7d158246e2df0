// Presets: machines that have been measured by others, ready to be emulated.

#pragma once

#include <string>
#include <vector>

#include "emu/memory/machine.hpp"

namespace emu {

/// All of them, nearest memory first. Each says where its figures come from.
const std::vector<EmulatedMachine>& presets();

/// nullptr for another name.
const EmulatedMachine* find_preset(const std::string& name);

/// The table of `fabricd --emulate list`.
std::string presets_text();

}  // namespace emu
