#include "fabricd/config/completion.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "fabricd/config/options.hpp"
#include "tests/support/program.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using Value = CompletedOption::Value;
using test_support::run_program;

namespace {

CompletedProgram program() {
    return {"my-tool",
            {{"--help", "Print a summary"}},
            {{"show",
              "What's there: [all] of it",
              {{"--json", "Print JSON"},
               {"--count", "N pictures", Value::kAny},
               {"--mode", "How", Value::kWords, {"fast", "slow"}},
               {"--id", "Which", Value::kWords, {}, "echo 17 18"}}},
             {"read", "A file", {}, {"", "FILE", Value::kFile}}}};
}

/// What bash offers after these words, the last of which is being typed.
std::string offered(const CompletedProgram& of, const std::string& words) {
    const test_support::TemporaryDirectory folder;
    const std::string file = folder.file("completion");
    std::ofstream(file) << completion_script(of, "bash").value();
    std::string function = "_" + of.name;
    for (char& c : function) c = c == '-' ? '_' : c;
    const auto output = run_program({"/bin/bash", "-ec",
                                     "source '" + file + "'; COMP_WORDS=(" + words +
                                         "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); " + function +
                                         "; echo \"${COMPREPLY[*]}\""});
    return output.out.empty() ? "bash: " + output.error : output.out;
}

}  // namespace

TEST_SUITE("fabricd.completion") {
    TEST_CASE("bash is offered commands, their options, and the values of these") {
        CHECK(offered(program(), "my-tool ''") == "show read --help\n");
        CHECK(offered(program(), "my-tool sh") == "show\n");
        CHECK(offered(program(), "my-tool show --") == "--json --count --mode --id\n");
        CHECK(offered(program(), "my-tool show --mode ''") == "fast slow\n");
        CHECK(offered(program(), "my-tool show --mode s") == "slow\n");
        CHECK(offered(program(), "my-tool show --id ''") == "17 18\n");
        CHECK(offered(program(), "my-tool show --count ''") == "\n");
        CHECK(offered(program(), "my-tool read /bin/bas").find("/bin/bash") == 0);
    }

    TEST_CASE("a program without commands offers what may stand alone") {
        const CompletedProgram alone{"my-bench",
                                     {{"--json", "Print JSON"}},
                                     {},
                                     {"", "KIND", Value::kWords, {"sum", "scan"}}};
        CHECK(offered(alone, "my-bench s") == "sum scan\n");
        CHECK(offered(alone, "my-bench --json sc") == "scan\n");
        CHECK(offered(alone, "my-bench --") == "--json\n");
        CHECK(completion_script(alone, "zsh").value().find("'*:KIND:(sum scan)'") !=
              std::string::npos);
        CHECK(completion_script(alone, "fish").value().find("-a 'sum scan'") != std::string::npos);
    }

    TEST_CASE("every option of fabricd is offered, choices with their words") {
        const CompletedProgram of = completed_program();
        CHECK(offered(of, "fabricd --pool-cap") == "--pool-capacity\n");
        const std::string script = completion_script(of, "bash").value();
        for (const auto& key : config_keys()) {
            CAPTURE(key.name);
            CHECK(script.find(" " + option_name(key)) != std::string::npos);
        }
        CHECK(offered(of, "fabricd --log-level ''") == "debug info warning error off\n");
        CHECK(offered(of, "fabricd --pool-dax-trust-users ''") == "true false\n");
    }

    TEST_CASE("zsh and fish get the same, with their own marks escaped") {
        const std::string zsh = completion_script(program(), "zsh").value();
        CHECK(zsh.find("#compdef my-tool\n") == 0);
        CHECK(zsh.find("'show:What'\\''s there\\: \\[all\\] of it'") != std::string::npos);
        CHECK(zsh.find("'--mode=[How]:value:(fast slow)'") != std::string::npos);
        CHECK(zsh.find("'*:FILE:_files'") != std::string::npos);
        const std::string fish = completion_script(program(), "fish").value();
        CHECK(fish.find(
                  "complete -c my-tool -n __fish_use_subcommand -a show -d 'What'\\''s there") !=
              std::string::npos);
        CHECK(
            fish.find("-n '__fish_seen_subcommand_from show' -l mode -d 'How' -x -a 'fast slow'") !=
            std::string::npos);
        CHECK_FALSE(completion_script(program(), "tcsh"));
    }

    TEST_CASE("a shell that is there takes its script") {
        const test_support::TemporaryDirectory folder;
        for (const std::string shell : {"bash", "zsh", "fish"}) {
            if (run_program({"/bin/sh", "-c", "command -v " + shell}).code != 0) continue;
            const std::string file = folder.file(shell.c_str());
            std::ofstream(file) << completion_script(completed_program(), shell).value();
            const auto output = run_program({"/usr/bin/env", shell, "-n", file});
            CHECK_MESSAGE(output.code == 0, output.error);
        }
    }
}
