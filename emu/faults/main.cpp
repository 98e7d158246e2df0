// fabric-faults: runs a command under a fault plan.

#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "emu/faults/fault_runner.hpp"
#include "libfabricshm/base/empty_values.hpp"
#include "libfabricshm/base/version.hpp"

namespace {

constexpr int kBadUsage = 2;
constexpr int kMissed = 3;

constexpr const char* kMore =
    "\nExamples:\n"
    "  fabric-faults plan.toml -- fabricrun --nproc-per-node 3 train.py\n"
    "  fabric-faults --check plan.toml\n"
    "\nExit code: that of COMMAND (128 + signal); 2 when plan or options are wrong or nothing\n"
    "could be started; 3 when COMMAND ended well but a fault of the plan never happened.\n";

int fail(const std::string& text) {
    std::fprintf(stderr, "fabric-faults: %s\n", text.c_str());
    return kBadUsage;
}

// A plan that did not happen proves nothing, so that is no success; but a failure of the command is
// the more interesting one.
int code_of(const emu::RunOutcome& outcome) {
    if (outcome.status == -1) return fail(outcome.error_message);
    for (const auto& missed : outcome.missed) {
        std::fprintf(stderr, "fabric-faults: %s\n", missed.c_str());
    }
    const int code =
        WIFEXITED(outcome.status) ? WEXITSTATUS(outcome.status) : 128 + WTERMSIG(outcome.status);
    return code == 0 && !outcome.missed.empty() ? kMissed : code;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"Runs a command and lets happen to it what a fault plan says."};
    app.name("fabric-faults");
    std::string path;
    std::vector<std::string> command;
    bool check = false;
    app.set_version_flag("-V,--version", "fabric-faults " FABRIC_VERSION);
    app.add_flag("--check", check, "Read the plan, say what is wrong with it, and end");
    app.add_option("PLAN", path, "Fault plan, a TOML file (docs/emulator.md)")->required();
    fabricshm::refuse_empty_values(app);  // not of COMMAND, whose words are its own
    app.add_option("COMMAND", command, "What to run, after --");
    app.footer(kMore);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        // --help and --version come as errors without a code.
        if (error.get_exit_code() == 0) return app.exit(error);
        return fail(error.what());
    }
    const emu::ParsedPlan read = emu::read_plan(path);
    if (!read.plan) return fail(read.error_message);
    if (check) return 0;
    if (command.empty()) return fail("COMMAND is missing (after --)");
    return code_of(emu::FaultRunner(*read.plan, command).run());
}
