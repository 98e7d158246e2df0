// fabric-data: the data cache's program. docs/data.md.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "fabricd/config/data_file.hpp"
#include "fabricd/data/program/silo_check.hpp"
#include "fabricd/data/program/spill_check.hpp"

namespace {

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;
constexpr const char* kDefaultFile = "/etc/fabricd/data.toml";

constexpr const char* kMore =
    "\nExit codes: 0 all is well, 1 the output could not be written, 2 wrong usage, a mistake in\n"
    "the file, a silo that can't be read, or a spill that can't be used.\n";

int fail(const std::string& text) {
    std::fprintf(stderr, "fabric-data: %s\n", text.c_str());
    return kBadUsage;
}

int check(const std::string& path, bool json) {
    fabricd::DataSpec spec;
    if (const auto bad = fabricd::read_data_file(path, spec)) return fail(*bad);
    std::vector<fabricd::SiloCheck> checks;
    for (const auto& silo : spec.silos) checks.push_back(fabricd::check_silo(silo));
    const auto spill = fabricd::check_spill(spec);
    std::string text = json ? fabricd::as_json(checks, spill) : fabricd::as_text(checks, path);
    if (spill && !json) text += fabricd::as_text(*spill, path);
    std::fputs(text.c_str(), stdout);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return kFailed;
    const bool is_well = std::all_of(checks.begin(), checks.end(),
                                     [](const auto& one) { return one.problem.empty(); });
    const bool is_spill_well = !spill || spill->problem.empty();
    return is_well && is_spill_well ? 0 : kBadUsage;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{
        "The data cache: files of silos in the pool. Begun: it checks its file and silos."};
    app.name("fabric-data");
    app.set_version_flag("-V,--version", "fabric-data " FABRIC_VERSION);
    app.require_subcommand(1);
    app.footer(kMore);
    std::string path = kDefaultFile;
    bool json = false;
    CLI::App& checking = *app.add_subcommand(
        "check", "Read the data file, open each silo, list its root; look at the spill");
    checking
        .add_option("--config", path, std::string("The data file (default ") + kDefaultFile + ")")
        ->type_name("PATH");
    checking.add_flag("--json", json, "Print JSON");
    checking.footer(kMore);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        // --help and --version come as errors without a code.
        if (error.get_exit_code() == 0) return app.exit(error);
        return fail(error.what() + std::string(" (fabric-data --help)"));
    }
    return check(path, json);
}
