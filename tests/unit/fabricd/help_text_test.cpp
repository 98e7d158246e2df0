#include "fabricd/config/help_text.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>

using namespace fabricd;
using Value = CompletedOption::Value;

namespace {

CompletedProgram of(const std::string& help, std::map<std::string, std::string> commands = {}) {
    commands[""] = help;
    return program_of_help("tool", [&](const std::string& name) { return commands.at(name); });
}

/// "--name=value text", a line for each.
std::string listed(const std::vector<CompletedOption>& options) {
    std::string lines;
    for (const CompletedOption& option : options) {
        const char* const value = option.value == Value::kFile  ? "=file"
                                  : option.value == Value::kAny ? "=any"
                                                                : "";
        lines += option.name + value + " " + option.help + "\n";
    }
    return lines;
}

}  // namespace

TEST_SUITE("fabricd.help_text") {
    TEST_CASE("options are found with their values and texts, as CLI11 prints them") {
        CHECK(listed(of("What it does.\n"
                        "Usage: tool [OPTIONS]\n\n"
                        "Options:\n"
                        "  -h,--help                   Print this help message and exit\n"
                        "  --output PATH               Write to a file instead\n"
                        "  --sizes SIZE,...            Bytes, e.g. --sizes 8KiB\n"
                        "  --runs N:INT in [1 - 100000]\n"
                        "                              Scenarios\n"
                        "  --json                      Print JSON\n\n"
                        "Exit codes: 0 done.\n")
                         .options) ==
              "--help Print this help message and exit\n"
              "--output=file Write to a file instead\n"
              "--sizes=any Bytes, e.g. --sizes 8KiB\n"
              "--runs=any Scenarios\n"
              "--json Print JSON\n");
    }

    TEST_CASE("several in one line are all found, with one space between or more") {
        CHECK(listed(of("usage: tool [options]\n\n"
                        "  --listen ADDRESS:PORT  where. Any other\n"
                        "                         shows it to all.\n"
                        "  -h, --help         -V, --version\n"
                        "  -a, --all, -b, --both\n")
                         .options) ==
              "--listen=any where. Any other\n--help \n--version \n--all \n--both \n");
    }

    TEST_CASE("a program that lists none has those of its usage") {
        CHECK(listed(of("usage: tool [--json] [--file PATH] [--version]\nLists functions.\n")
                         .options) == "--json \n--file=file \n--version \n");
    }

    TEST_CASE("an option that begins a line of another one's text is there once") {
        CHECK(listed(of("  --policy NAME  how to\n  --map WORDS    which, for\n"
                        "                 --policy kind\n")
                         .options) == "--policy=any how to\n--map=any which, for\n");
    }

    TEST_CASE("commands have the options of their own help") {
        const CompletedProgram program =
            of("Options:\n  --help  Print this\n\nSubcommands:\n"
               "  show                        What there is\n"
               "  end                         End it\n\nExamples:\n  tool show\n",
               {{"show", "  --json  Print JSON\n"}, {"end", "  --now\n"}});
        CHECK(listed(program.options) == "--help Print this\n");
        REQUIRE(program.commands.size() == 2);
        CHECK(program.commands[0].name == "show");
        CHECK(program.commands[0].help == "What there is");
        CHECK(listed(program.commands[0].options) == "--json Print JSON\n");
        CHECK(listed(program.commands[1].options) == "--now \n");
        CHECK(program.argument.value == Value::kNone);
    }

    TEST_CASE("what is no help has no options, whatever it is") {
        CHECK(of("").options.empty());
        CHECK(of("-\n--\n  -\n  ---\n  --\n[-").options.empty());
        CHECK(of("usage: [-").options.empty());
        CHECK(of("usage: tool [--\n\nSubcommands:\n").commands.empty());
    }
}
