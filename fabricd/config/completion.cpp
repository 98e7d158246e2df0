#include "fabricd/config/completion.hpp"

#include <map>

namespace fabricd {

namespace {

using Completed = CompletedOption::Value;

/// In single quotes, for all three shells.
std::string in_single_quotes(const std::string& text) {
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
}

std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const auto& word : words) text += (text.empty() ? "" : " ") + word;
    return text;
}

/// A function's name may hold no hyphens in some shells.
std::string function_of(const std::string& program) {
    std::string name = "_" + program;
    for (char& c : name) c = c == '-' ? '_' : c;
    return name;
}

std::vector<std::string> names_of(const std::vector<CompletedCommand>& commands) {
    std::vector<std::string> names;
    for (const auto& command : commands) names.push_back(command.name);
    return names;
}

std::string option_names(const std::vector<CompletedOption>& options) {
    std::vector<std::string> names;
    for (const auto& option : options) names.push_back(option.name);
    return joined(names);
}

// ---- bash --------------------------------------------------------------------------------------

// What follows an option, or stands alone: a line that fills COMPREPLY.
std::string bash_reply(const CompletedOption& option) {
    if (option.value == Completed::kFile)
        return "mapfile -t COMPREPLY < <(compgen -f -- \"$word\")";
    if (option.value != Completed::kWords) return ":";
    std::string words = in_single_quotes(joined(option.words));
    if (!option.lines.empty()) words += "\" $(" + option.lines + ")\"";
    return "mapfile -t COMPREPLY < <(compgen -W " + words + " -- \"$word\")";
}

std::string bash_script(const CompletedProgram& program) {
    // Options of one name mean the same in all commands.
    std::map<std::string, CompletedOption> values;
    for (const auto& option : program.options) values[option.name] = option;
    for (const auto& command : program.commands) {
        for (const auto& option : command.options) values[option.name] = option;
    }
    const std::string function = function_of(program.name);
    std::string text =
        "# Completion of " + program.name + " for bash. Made by the program itself.\n" + function +
        "() {\n" +
        "    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
        "    local command=\"\" candidate options\n"
        "    for candidate in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
        "        [[ " +
        in_single_quotes(" " + joined(names_of(program.commands)) + " ") +
        " == *\" $candidate \"* ]] && command=$candidate && break\n    done\n"
        "    case $previous in\n";
    for (const auto& [name, option] : values) {
        if (option.value == Completed::kNone) continue;
        text += "        " + name + ") " + bash_reply(option) + "; return ;;\n";
    }
    text += "    esac\n    case $command in\n";
    for (const auto& command : program.commands) {
        text += "        " + command.name +
                ") options=" + in_single_quotes(option_names(command.options));
        if (command.argument.value != Completed::kNone) {
            text +=
                "\n            [[ $word != -* ]] && " + bash_reply(command.argument) + " && return";
        }
        text += " ;;\n";
    }
    text += "        *) options=" + in_single_quotes(joined(names_of(program.commands)) + " " +
                                                     option_names(program.options));
    if (program.argument.value != Completed::kNone) {
        text += "\n            [[ $word != -* ]] && " + bash_reply(program.argument) + " && return";
    }
    text +=
        " ;;\n    esac\n    mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n}\n"
        "complete -F " +
        function + " " + program.name + "\n";
    return text;
}

// ---- zsh ---------------------------------------------------------------------------------------

// Brackets, colons and backslashes have a meaning in the specifications of _arguments.
std::string zsh_text(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
        out += c;
    }
    return out;
}

std::string zsh_action(const CompletedOption& option) {
    if (option.value == Completed::kFile) return "_files";
    if (option.value != Completed::kWords) return " ";
    if (!option.lines.empty()) {
        return "{compadd -- " + joined(option.words) + " ${(f)\"$(" + option.lines + ")\"}}";
    }
    return "(" + joined(option.words) + ")";
}

std::string zsh_arguments(const std::vector<CompletedOption>& options,
                          const CompletedOption& argument) {
    std::string text = "_arguments";
    for (const auto& option : options) {
        std::string spec = option.name;
        if (option.value != Completed::kNone) spec += "=";
        spec += "[" + zsh_text(option.help) + "]";
        if (option.value != Completed::kNone) spec += ":value:" + zsh_action(option);
        text += " \\\n            " + in_single_quotes(spec);
    }
    if (argument.value != Completed::kNone) {
        text += " \\\n            " +
                in_single_quotes("*:" + zsh_text(argument.help) + ":" + zsh_action(argument));
    }
    return text;
}

std::string zsh_script(const CompletedProgram& program) {
    const std::string function = function_of(program.name);
    std::string text =
        "#compdef " + program.name + "\n# Made by the program itself.\n" + function + "() {\n";
    if (!program.commands.empty()) {
        text += "    local -a commands\n    commands=(\n";
        for (const auto& command : program.commands) {
            text +=
                "        " + in_single_quotes(command.name + ":" + zsh_text(command.help)) + "\n";
        }
        text +=
            "    )\n    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n"
            "        _describe command commands\n        return\n    fi\n"
            "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n"
            "    case $command in\n";
        for (const auto& command : program.commands) {
            text += "        " + command.name + ") " +
                    zsh_arguments(command.options, command.argument) + " ;;\n";
        }
        text += "        *) " + zsh_arguments(program.options, {}) + " ;;\n    esac\n";
    } else {
        text += "    " + zsh_arguments(program.options, program.argument) + "\n";
    }
    return text + "}\n" + function + " \"$@\"\n";
}

// ---- fish --------------------------------------------------------------------------------------

std::string fish_words(const CompletedOption& option) {
    std::string words = joined(option.words);
    if (!option.lines.empty()) words += (words.empty() ? "(" : " (") + option.lines + ")";
    return in_single_quotes(words);
}

std::string fish_option(const std::string& start, const CompletedOption& option) {
    std::string line =
        start + " -l " + option.name.substr(2) + " -d " + in_single_quotes(option.help);
    if (option.value == Completed::kAny) line += " -x";
    if (option.value == Completed::kFile) line += " -r -F";
    if (option.value == Completed::kWords) line += " -x -a " + fish_words(option);
    return line + "\n";
}

std::string fish_script(const CompletedProgram& program) {
    std::string text = "# Completion of " + program.name +
                       " for fish. Made by the program itself.\n"
                       "complete -c " +
                       program.name + " -f\n";
    const std::string start = "complete -c " + program.name;
    const std::string first =
        program.commands.empty() ? start : start + " -n __fish_use_subcommand";
    for (const auto& option : program.options) text += fish_option(first, option);
    if (program.argument.value == Completed::kFile) text += start + " -F\n";
    if (program.argument.value == Completed::kWords) {
        text += start + " -a " + fish_words(program.argument) + "\n";
    }
    for (const auto& command : program.commands) {
        text += first + " -a " + command.name + " -d " + in_single_quotes(command.help) + "\n";
        const std::string inside =
            start + " -n " + in_single_quotes("__fish_seen_subcommand_from " + command.name);
        for (const auto& option : command.options) text += fish_option(inside, option);
        if (command.argument.value == Completed::kFile) text += inside + " -F\n";
        if (command.argument.value == Completed::kWords) {
            text += inside + " -a " + fish_words(command.argument) + "\n";
        }
    }
    return text;
}

}  // namespace

std::optional<std::string> completion_script(const CompletedProgram& program,
                                             const std::string& shell) {
    if (shell == "bash") return bash_script(program);
    if (shell == "zsh") return zsh_script(program);
    if (shell == "fish") return fish_script(program);
    return std::nullopt;
}

}  // namespace fabricd
