// fabric-data: the data cache's program. docs/data.md.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "fabricd/config/data_file.hpp"
#include "fabricd/data/program/host_check.hpp"
#include "fabricd/data/program/outcome.hpp"
#include "fabricd/data/program/serve_command.hpp"
#include "fabricd/data/program/service_commands.hpp"
#include "fabricd/data/program/silo_check.hpp"
#include "fabricd/data/program/spill_check.hpp"
#include "libfabricshm/base/empty_values.hpp"
#include "libfabricshm/base/version.hpp"

namespace {

using fabricd::fail;
using fabricd::kBadUsage;
using fabricd::kFailed;

constexpr const char* kDefaultFile = "/etc/fabricd/data.toml";

constexpr const char* kMore =
    "\nExit codes: 0 all is well, 1 the service refused it, something of it failed (check: a silo\n"
    "answers wrongly about a file; flush: a file is perhaps lost), or the output could not be\n"
    "written, 2 wrong usage, a mistake in the file, no service, or (check) a silo "
    "that\n"
    "can't be read, or a spill that can't be used.\n";

int check(const std::string& path, bool json) {
    fabricd::DataSpec spec;
    if (const auto bad = fabricd::read_data_file(path, spec)) return fail(kBadUsage, *bad);
    std::vector<fabricd::SiloCheck> checks;
    for (const auto& silo : spec.silos) checks.push_back(fabricd::check_silo(silo));
    const auto spill = fabricd::check_spill(spec);
    const auto problems = fabricd::check_host(spec);
    std::string text = fabricd::as_text(checks, path);
    if (spill) text += fabricd::as_text(*spill, path);
    text += fabricd::as_text(problems, path);
    if (json) text = fabricd::as_json(checks, spill, problems);
    std::fputs(text.c_str(), stdout);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return kFailed;
    const bool is_well = std::all_of(checks.begin(), checks.end(),
                                     [](const auto& one) { return one.problem.empty(); });
    const bool is_spill_well = !spill || spill->problem.empty();
    if (!is_well || !is_spill_well || !problems.empty()) return kBadUsage;
    const bool is_right =
        std::all_of(checks.begin(), checks.end(), [](const auto& one) { return one.wrong == 0; });
    return is_right ? 0 : kFailed;
}

struct Words {
    std::string file = kDefaultFile;
    std::string daemon;
    fabricd::ServiceCommand command;
};

void add_file(CLI::App& app, Words& words) {
    app.add_option("--config", words.file,
                   std::string("The data file (default ") + kDefaultFile + ")")
        ->type_name("PATH");
}

// A row for each command that a running service answers.
struct CommandRow {
    const char* name;
    const char* help;
    bool has_path;
};
constexpr CommandRow kCommands[] = {
    {"status", "What is in memory, what the silos give, how far the plans are", false},
    {"why", "Where a file's bytes are, why they are kept, and which processes have them pinned",
     true},
    {"load", "Fetch the files below a path into memory, as long as there is room", true},
    {"flush", "Wait until what was written is in the silos", false},
    {"drop", "Take the files below a path out of memory, but for what is pinned", true},
    {"verify", "Compare what is in memory with its checksums", true},
    {"refresh", "Ask the silo for names and versions now", true}};

void add_commands(CLI::App& app, Words& words) {
    for (const CommandRow& row : kCommands) {
        CLI::App& command = *app.add_subcommand(row.name, row.help);
        if (row.has_path) {
            command.add_option("path", words.command.path, "In the namespace, as /images/train")
                ->required();
        }
        command.add_option("--socket", words.command.socket, "The service's socket")
            ->type_name("PATH");
        command.add_flag("--json", words.command.json, "Print JSON");
        const std::string name = row.name;
        if (name == "load") {
            command
                .add_option("--wait", words.command.wait,
                            "Return when so much of it is in memory, as 10% (default: at once)")
                ->type_name("SHARE");
        }
        if (name == "verify") {
            command.add_flag("--silo", words.command.with_silo, "Also with the bytes of the silo");
        }
        if (name == "load" || name == "verify" || name == "flush") {
            command
                .add_option("--timeout", words.command.timeout_s, "How long to wait (default 600)")
                ->check(CLI::Range(1, 1'000'000))
                ->type_name("SECONDS");
        }
        command.footer(kMore);
    }
}

int serve(const Words& words) {
    fabricd::ServeOptions options;
    if (const auto bad = fabricd::read_data_file(words.file, options.spec))
        return fail(kBadUsage, *bad);
    const auto problems = fabricd::check_host(options.spec);
    if (!problems.empty()) {
        std::fputs(fabricd::as_text(problems, words.file).c_str(), stderr);
        return kBadUsage;
    }
    options.socket = words.command.socket;
    options.daemon = words.daemon;
    return fabricd::serve(options);
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"The data cache: files of silos in the pool, for all processes of the host."};
    app.name("fabric-data");
    app.set_version_flag("-V,--version", "fabric-data " FABRIC_VERSION);
    app.require_subcommand(1);
    app.footer(kMore);
    Words words;
    CLI::App& checking = *app.add_subcommand(
        "check", "Read the data file, open each silo, list its root; look at the spill");
    add_file(checking, words);
    checking.add_flag("--json", words.command.json, "Print JSON");
    checking.footer(kMore);
    CLI::App& serving = *app.add_subcommand("serve", "Publish an arena and keep files in it");
    add_file(serving, words);
    serving.add_option("--socket", words.command.socket, "Where to listen")->type_name("PATH");
    serving.add_option("--daemon", words.daemon, "The attach socket of fabricd")->type_name("PATH");
    serving.footer(kMore);
    add_commands(app, words);
    fabricshm::refuse_empty_values(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        // --help and --version come as errors without a code.
        if (error.get_exit_code() == 0) return app.exit(error);
        return fail(kBadUsage, error.what() + std::string(" (fabric-data --help)"));
    }
    const std::string name = app.get_subcommands().front()->get_name();
    if (name == "check") return check(words.file, words.command.json);
    if (name == "serve") return serve(words);
    words.command.name = name;
    return fabricd::run_service_command(words.command);
}
