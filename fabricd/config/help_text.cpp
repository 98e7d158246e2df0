#include "fabricd/config/help_text.hpp"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string_view>
#include <utility>

namespace fabricd {

namespace {

using Value = CompletedOption::Value;

std::string trimmed(const std::string& text) {
    const auto first = text.find_first_not_of(' ');
    if (first == std::string::npos) return "";
    return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

bool is_letter(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

// "--name" or "-n", and where it ends; "": there is none at `at`.
std::string name_at(const std::string& line, std::size_t at) {
    std::size_t end = line.find_first_not_of('-', at);
    if (end == std::string::npos || end == at || end > at + 2 || !is_letter(line[end])) return "";
    while (end < line.size() && (is_letter(line[end]) || line[end] == '-')) ++end;
    return line.substr(at, end - at);
}

// The word behind the names of an option, up to its text: "PATH", "N:INT in [1 - 8]".
Value value_of(const std::string& head) {
    if (head.empty()) return Value::kNone;
    static const std::vector<std::string> files = {"PATH", "FILE", "PLAN", "SOCKET"};
    const std::string word = head.substr(0, head.find_first_of(" :=["));
    return std::find(files.begin(), files.end(), word) == files.end() ? Value::kAny : Value::kFile;
}

// All options of one line, which share its text, and its value unless they are in other brackets.
std::vector<CompletedOption> options_of(const std::string& line) {
    std::vector<CompletedOption> found;
    std::size_t at = line.find_first_not_of(" [");
    std::size_t shares = 0;  // the first that has the next value
    for (std::string name; at < line.size() && !(name = name_at(line, at)).empty();) {
        // Those of one letter are typed faster than completed.
        if (name[1] == '-') found.push_back({name, "", Value::kNone});
        const std::size_t end = at + name.size();
        at = line.find_first_not_of(" ,[]", end);
        // One space: its value. More: its text, or another option.
        if (end < line.size() && line[end] == ']') shares = found.size();
        const bool has_value = at == end + 1 && line[end] == ' ' && line[at] != '-';
        if (!has_value) continue;
        const std::size_t text = std::min(line.find("  ", at), line.find(']', at));
        const Value value = value_of(line.substr(at, text - std::min(at, text)));
        for (; shares < found.size(); ++shares) found[shares].value = value;
        at = line.find_first_not_of(" []", std::min(text, line.size()));
        if (at != std::string::npos && line[at] == '-') continue;
        break;
    }
    if (at == std::string::npos) return found;
    for (CompletedOption& option : found) option.help = trimmed(line.substr(at));
    return found;
}

// A text that speaks of another option may begin a line with it.
void add(CompletedOption option, std::vector<CompletedOption>& found) {
    const bool is_known = std::any_of(found.begin(), found.end(),
                                      [&](const auto& other) { return other.name == option.name; });
    if (!is_known) found.push_back(std::move(option));
}

// Those of the lines that begin with one; of a text that has none, those of its usage.
std::vector<CompletedOption> options_in(const std::string& help) {
    std::vector<CompletedOption> found;
    std::istringstream lines(help);
    std::string usage;
    for (std::string line; std::getline(lines, line);) {
        if (usage.empty() && (line.find("sage: ") != std::string::npos)) usage = line;
        if (line.substr(0, 2) != "  ") continue;
        const std::string text = trimmed(line);
        const bool is_option = !name_at(line, line.find_first_not_of(' ')).empty();
        if (is_option) {
            for (CompletedOption& option : options_of(line)) add(std::move(option), found);
        } else if (!found.empty() && found.back().help.empty()) {
            found.back().help = text;
        }
    }
    const std::size_t first = usage.find("[-");
    if (!found.empty() || first == std::string::npos) return found;
    return options_of(usage.substr(first));
}

// "  name   text" below the heading.
std::vector<CompletedCommand> commands_in(const std::string& help) {
    std::vector<CompletedCommand> found;
    const std::size_t heading = help.find("\nSubcommands:\n");
    if (heading == std::string::npos) return found;
    std::istringstream lines(help.substr(heading + 1));
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line) && !trimmed(line).empty()) {
        const std::string text = trimmed(line);
        const std::size_t end = text.find(' ');
        found.push_back(
            {text.substr(0, end), trimmed(text.substr(std::min(end, text.size()))), {}});
    }
    return found;
}

}  // namespace

CompletedProgram program_of_help(const std::string& name,
                                 const std::function<std::string(const std::string&)>& help_of) {
    const std::string help = help_of("");
    CompletedProgram program{name, options_in(help), commands_in(help), {}};
    for (CompletedCommand& command : program.commands) {
        command.options = options_in(help_of(command.name));
    }
    if (program.commands.empty()) program.argument = {"", "", Value::kFile};
    return program;
}

}  // namespace fabricd
