// Prints the completions of another program, made of what that prints for --help. Used by the build
// and not installed: completions-of-help NAME SHELL COMMAND...

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "fabricd/config/help_text.hpp"

namespace {

// Paths of the build may have any character but this one.
std::string quoted(const std::string& word) {
    return "'" + word + "'";
}

std::string output_of(const std::string& command) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"),
                                                               ::pclose);
    std::string text;
    char part[4096];
    while (pipe != nullptr) {
        const std::size_t read = std::fread(part, 1, sizeof part, pipe.get());
        if (read == 0) break;
        text.append(part, read);
    }
    return text;
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> words(argv, argv + argc);
    if (words.size() < 4) return 2;
    std::string run;
    for (std::size_t i = 3; i < words.size(); ++i) run += quoted(words[i]) + " ";
    const auto program = fabricd::program_of_help(words[1], [&](const std::string& command) {
        return output_of(run + (command.empty() ? "" : quoted(command) + " ") + "--help");
    });
    // A program that could not be run has no options: better no file than an empty one.
    const auto script = fabricd::completion_script(program, words[2]);
    if (!script || program.options.empty()) return 1;
    return std::fputs(script->c_str(), stdout) < 0 ? 1 : 0;
}
