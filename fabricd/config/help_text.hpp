// The text that a program prints for --help, read back as what can be completed: for programs that
// print no completions themselves. What --help lacks their completions lack, too.

#pragma once

#include <functional>
#include <string>

#include "fabricd/config/completion.hpp"

namespace fabricd {

/// Options begin a line and may be followed by a value in capitals, and by their text after two
/// spaces or on the next line; commands are listed below "Subcommands:". An option whose value is a
/// PATH, FILE, PLAN or SOCKET is completed with files, and so is what stands alone. `help_of` gives
/// the help of a command ("": that of the program).
CompletedProgram program_of_help(const std::string& name,
                                 const std::function<std::string(const std::string&)>& help_of);

}  // namespace fabricd
