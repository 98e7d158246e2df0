// Completions of command lines for bash, zsh and fish, all from one description, which programs
// fill in from the tables of their own options: there is no second list to go stale.

#pragma once

#include <optional>
#include <string>
#include <vector>

namespace fabricd {

struct CompletedOption {
    std::string name;  // "--json"
    std::string help;  // one line
    enum class Value { kNone, kAny, kFile, kWords } value = Value::kNone;
    std::vector<std::string> words = {};  // of kWords
    std::string lines = "";               // likewise: a shell command whose output lines they are
};

struct CompletedCommand {
    std::string name;
    std::string help;
    std::vector<CompletedOption> options;
    CompletedOption argument = {};  // what may stand there that is no option; kNone: nothing
};

struct CompletedProgram {
    std::string name;
    std::vector<CompletedOption> options;    // without a command
    std::vector<CompletedCommand> commands;  // none: the program has none
    CompletedOption argument = {};           // of one without commands, as of a command
};

/// The script for "bash", "zsh" or "fish"; nothing for another shell.
std::optional<std::string> completion_script(const CompletedProgram& program,
                                             const std::string& shell);

}  // namespace fabricd
