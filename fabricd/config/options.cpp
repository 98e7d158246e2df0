#include "fabricd/config/options.hpp"

#include <CLI/CLI.hpp>

#include <sstream>
#include <utility>
#include <vector>

#include "fabricd/config/runtime_dir.hpp"
#include "libfabricshm/base/empty_values.hpp"

namespace fabricd {

namespace {

// For terminals of 100 columns.
constexpr std::size_t kHelpWidth = 96;

/// `text` in lines of kHelpWidth, each after `indent` blanks.
/// Words that are longer than a line stay whole.
std::string wrapped(const std::string& text, std::size_t indent) {
    const std::string margin(indent, ' ');
    std::string result;
    std::string line = margin;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        if (line.size() > indent && line.size() + 1 + word.size() > kHelpWidth) {
            result += line + "\n";
            line = margin;
        }
        line += (line.size() > indent ? " " : "") + word;
    }
    return result + line + "\n";
}

// From the table alone, so that no option can be undocumented.
std::string key_help(const ConfigKey& key) {
    std::string facts = "(" + key.kind;
    if (!key.range.empty()) facts += "; " + key.range;
    if (!key.fallback.empty()) facts += "; default " + key.fallback;
    return "  " + option_name(key) + " VALUE\n" + wrapped(key.help + " " + facts + ")", 6);
}

}  // namespace

ErrorMessage parse_options(int argc, const char* const* argv, Options& options) {
    options.argc = argc;
    options.argv = argv;
    CLI::App app;
    app.set_help_flag();  // --help is ours: it prints the table
    app.add_flag("-h,--help", options.help);
    app.add_flag("-V,--version", options.version);
    app.add_flag("--print-config", options.print_config);
    app.add_flag("--print-config-table", options.print_config_table);
    app.add_flag("--print-config-manual", options.print_config_manual);
    app.add_option("--completion", options.completion)
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    app.add_option("-c,--config", options.config_file);
    std::string emulate;
    app.add_option("--emulate", emulate)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    fabricshm::refuse_empty_values(app);  // not of keys: an empty one means what their table says
    // Flags and not keys, on purpose: see Config::Pool.
    bool format = false, take_over = false;
    bool foreground = false;  // always so; accepted because unit files and people say it
    app.add_flag("--format", format);
    app.add_flag("--take-over", take_over);
    app.add_flag("--foreground", foreground);
    std::vector<std::string> given(config_keys().size());
    std::vector<CLI::Option*> handles;
    for (std::size_t i = 0; i < given.size(); ++i) {
        // The last one counts, so that a script can add to a given command line.
        handles.push_back(app.add_option(option_name(config_keys()[i]), given[i])
                              ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast));
    }
    for (int i = 1; i < argc; ++i) {
        if (auto former = refuse_former_option(argv[i])) return former;
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return std::string("command line: ") + error.what();
    }

    // Prints and ends: a configuration that is wrong must not keep people from looking at the
    // presets.
    options.list_presets = emulate == "list";
    if (options.list_presets || !options.completion.empty()) return {};
    // A file that was named has to be there; the usual one need not.
    if (app.count("--config") == 0) options.config_file = default_config_file();
    if (!options.config_file.empty()) {
        if (auto bad = read_config_file(options.config, options.config_file)) return bad;
    }
    // After the file, in the order of the table: options win.
    for (std::size_t i = 0; i < given.size(); ++i) {
        if (handles[i]->count() == 0) continue;
        const auto& key = config_keys()[i];
        const std::string where = "command line: " + option_name(key);
        if (auto bad = set_key(options.config, key, given[i], where)) return bad;
    }
    // `--emulate` after `--emulate-machine`, which is its long form: with both the short one holds.
    if (app.count("--emulate") != 0) options.config.emulate.machine = emulate;
    options.config.pool.dax_format = format;
    options.config.pool.dax_take_over = take_over;
    return check_config(options.config);
}

std::string help_text() {
    std::string text =
        "Usage: fabricd [OPTION]...\n"
        "Shares a memory pool between the processes of training jobs on this host.\n\n"
        "  -c, --config FILE\n" +
        wrapped(
            "Read FILE. Without it: ~/.config/fabricd/fabricd.toml, or as root "
            "/etc/fabricd/fabricd.toml, when it is there. Options win over the file.",
            6) +
        "  --print-config\n" + wrapped("Print the configuration that results, then end.", 6) +
        "  --format\n" + wrapped("Initialise the DAX device: what it holds is lost.", 6) +
        "  --take-over\n" +
        wrapped("Take the DAX device from the host that it belongs to, which must be dead.", 6) +
        "  --emulate MACHINE\n" +
        wrapped(
            "The same as --emulate-machine: behave like MACHINE, a preset or the path of a machine "
            "file; \"list\" prints the presets, then ends.",
            6) +
        "  --completion SHELL\n" +
        wrapped("Print the script that completes this command line in bash, zsh or fish.", 6) +
        "  --foreground\n" + wrapped("Accepted; fabricd always stays in the foreground.", 6) +
        "  -h, --help, -V, --version\n\nEvery key of the file is an option too:\n";
    for (const auto& key : config_keys()) text += key_help(key);
    return text +
           "\nExamples:\n"
           "  fabricd                                a pool of half of the free memory\n"
           "  fabricd --pool-capacity 8GiB --log-level debug\n"
           "  fabricd --pool-backend dax --pool-dax-device /dev/dax0.0\n"
           "  fabricd --emulate mhd_niagara2         as slow as memory behind a CXL device\n"
           "\nSignals: SIGTERM and SIGINT end it, SIGHUP opens the log file again and takes\n"
           "log.level from the file. Exit codes: 0 ended on request, 1 failed while running,\n"
           "2 could not start (one line on standard error says which option to change).\n";
}

CompletedProgram completed_program() {
    using Value = CompletedOption::Value;
    CompletedProgram program{"fabricd", {}, {}};
    auto& options = program.options;
    options.push_back({"--config", "Read this file", Value::kFile});
    options.push_back({"--print-config", "Print the configuration that results"});
    options.push_back({"--format", "Initialise the DAX device: what it holds is lost"});
    options.push_back({"--take-over", "Take the DAX device from a host that is dead"});
    options.push_back({"--emulate",
                       "Behave like this machine",
                       Value::kWords,
                       {"list"},
                       "fabricd --emulate list 2>/dev/null | tail -n +2 | cut -d' ' -f1"});
    options.push_back(
        {"--completion", "Print this script", Value::kWords, {"bash", "zsh", "fish"}});
    options.push_back({"--foreground", "Accepted; it always stays in the foreground"});
    options.push_back({"--help", "Print all options"});
    options.push_back({"--version", "Print the version"});
    for (const auto& key : config_keys()) {
        CompletedOption option{option_name(key), key.help, Value::kAny};
        const std::string one_of = "one of ";
        if (key.kind == "true or false") option.words = {"true", "false"};
        if (key.kind.rfind(one_of, 0) == 0) {
            std::istringstream words(key.kind.substr(one_of.size()));
            for (std::string word; words >> word;) {
                std::erase(word, ',');
                option.words.push_back(word);
            }
        }
        if (!option.words.empty()) option.value = Value::kWords;
        if (key.kind == "absolute path") option.value = Value::kFile;
        options.push_back(option);
    }
    return program;
}

}  // namespace fabricd
