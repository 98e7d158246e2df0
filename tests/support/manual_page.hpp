// What a manual page of docs/man says, for comparing it with the program's own tables.

#pragma once

#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace test_support {

/// The first words of the entries (.TP) in the section COMMANDS, without the backslashes.
inline std::multiset<std::string> commands_of_manual(const std::string& path) {
    std::ifstream page(path);
    std::multiset<std::string> names;
    bool is_there = false;
    bool begins = false;
    for (std::string line; std::getline(page, line);) {
        if (line.rfind(".SH", 0) == 0) is_there = line == ".SH COMMANDS";
        if (is_there && begins) {
            std::erase(line, '\\');
            std::string macro, name;
            std::istringstream(line) >> macro >> name;
            names.insert(name);
        }
        begins = line == ".TP";
    }
    return names;
}

}  // namespace test_support
