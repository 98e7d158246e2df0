#include "fabricd/ctl/ctl_options.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>

#include "fabricd/config/completion.hpp"
#include "fabricd/config/nearest_word.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

namespace {

constexpr double kWatchSeconds = 1.0;

constexpr const char* kExamples =
    "\nExamples:\n"
    "  fabricctl discover                 what this host offers, and which pool auto takes\n"
    "  fabricctl status                   one look at the daemon\n"
    "  fabricctl top                      training, load, arenas and sessions, once per second\n"
    "  fabricctl waiting                  which rank is late, and in what\n"
    "  fabricctl arenas --watch 5         the arenas, every five seconds\n"
    "  fabricctl regions --arena 7 --json | jq '.regions[].bytes'\n"
    "  fabricctl devices --file d.toml    check a device file before fabricd reads it\n"
    "  fabricctl migrate job/experts.3 device:gpu1 --limit 500M\n"
    "  fabricctl quota gpu0 4G            more or less memory for a device, at once\n"
    "  fabricctl tune --ranks 2 4         measure once per machine, half a minute per size\n"
    "  fabricctl decisions --last 5       what the control loop did\n"
    "  fabricctl why 17                   and why: inputs, prediction, outcome\n"
    "  fabricctl replay decisions --set gain=0.1\n"
    "  fabricctl health && fabricctl events --last 5\n"
    "  fabricctl inspect job              what has this name or id, and what belongs to it\n"
    "  fabricctl evict arena:job          end its processes, so that their memory is free\n"
    "  fabricctl drain --wait 600         take no more jobs, wait for those that run\n"
    "  fabricctl shutdown                 end the daemon; sessions go on and find the next\n"
    "\nExit codes: 0 done, 1 failed, 2 wrong usage, 3 no daemon is running.\n";

// Every command that asks the daemon has these two: fabricctl is used by scripts as much as by
// people.
void add_common(CLI::App& app, CtlOptions& options) {
    app.add_flag("--json", options.json, "Print JSON, one line per picture");
    app.add_option("--socket", options.socket,
                   "Admin socket (default: $FABRIC_ADMIN_SOCKET, $XDG_RUNTIME_DIR/fabricd, "
                   "/run/fabricd, /tmp/fabricd-UID)")
        ->type_name("PATH");
}

/// A whole number from 1 on, or from 0 on, in a message that a person can read: CLI11's own names
/// the range of a double, and takes -1 for the largest number there is.
CLI::Validator whole_number(bool from_zero = false) {
    const auto check = [from_zero](const std::string& text) {
        const bool digits =
            !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        const bool above_zero = text.find_first_not_of('0') != std::string::npos;
        const bool fits = digits && text.size() <= 18 && (from_zero || above_zero);
        const char* least = from_zero ? "0" : "1";
        return fits ? "" : "\"" + text + "\" is no whole number from " + least + " on";
    };
    return {check, ""};
}

// --watch without a value leaves a zero in `seconds`, which parse_ctl_options() makes the default.
// The range is what the daemon's watch takes.
void add_watch(CLI::App& app, double& seconds, CtlOptions& options) {
    app.add_option("--watch", seconds, "Show it again and again, every SECONDS (default 1)")
        ->expected(0, 1)
        ->type_name("SECONDS")
        ->check(CLI::Range(0.1, 60.0));
    app.add_option("--count", options.count, "End a watch after N pictures")
        ->type_name("N")
        ->check(whole_number());
}

// Up to a week: seconds as milliseconds stay far from an overflow.
void add_wait(CLI::App& app, double& seconds, const char* help) {
    app.add_option("--wait", seconds, help)
        ->type_name("SECONDS")
        ->check(CLI::Range(0.0, 86400.0 * 7));
}

// `bytes` is text here, as in the next two: sizes have units, which parse_bytes() knows and the
// parser does not.
void add_vgpu_commands(CLI::App& app, CtlOptions& options, std::string& bytes) {
    add_common(*app.add_subcommand("vgpus", "The vGPUs: quota, share and use of their GPUs"),
               options);
    auto* resize = app.add_subcommand("vgpu-resize", "Change the quota of a vGPU as it runs");
    resize->add_option("NAME", options.vgpu.name, "The vGPU")->required();
    resize->add_option("BYTES", bytes, "Its quota of GPU memory: 512MiB, 20GiB")->required();
    add_common(*resize, options);
    auto* share = app.add_subcommand("vgpu-share", "Change the compute share of a vGPU as it runs");
    share->add_option("NAME", options.vgpu.name, "The vGPU")->required();
    share->add_option("PERCENT", options.vgpu.share_percent, "Its share of the GPU's time")
        ->required()
        ->check(CLI::Range(1, 100));
    add_common(*share, options);
}

struct Parser;
void add_migrate(CLI::App& app, Parser& parser, CtlOptions& options);
void add_quota(CLI::App& app, Parser& parser, CtlOptions& options);

/// The parser, and the places it writes to that are no fields of CtlOptions.
struct Parser {
    explicit Parser(CtlOptions& options);

    CLI::App app{"Looks at fabricd and steers it. Run 'fabricctl COMMAND --help' for its options."};
    double watch = 0.0;
    double wait = 0.0;
    std::string vgpu_bytes;
    bool version = false;
    std::string limit;
    std::string bytes;
};

void add_migrate(CLI::App& app, Parser& parser, CtlOptions& options) {
    auto* migrate = app.add_subcommand("migrate", "Move a shard while it is read");
    migrate->add_option("SHARD", options.shard, "Which one, as fabricctl shards calls it")
        ->required()
        ->type_name("ARENA/NAME");
    migrate
        ->add_option("TARGET", options.target,
                     "here (another place of its arena), arena:NAME, device:NAME or node:N")
        ->required();
    migrate
        ->add_option("--limit", parser.limit,
                     "Copy at most so many bytes per second, with K, M, G (never more than the "
                     "daemon's limits.move_bytes_per_second)")
        ->type_name("BYTES/S");
    add_common(*migrate, options);
}

void add_quota(CLI::App& app, Parser& parser, CtlOptions& options) {
    auto* quota = app.add_subcommand("quota", "Change what a device or a user may hold");
    quota->add_option("SUBJECT", options.subject, "A device of the device file, or user:NAME")
        ->required();
    quota->add_option("BYTES", parser.bytes, "The quota, with K, M, G or T; of a user 0: no limit")
        ->required();
    quota
        ->add_option("--grace", options.quota_grace,
                     "Wait so long for holders of more to return it (default 30)")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.0, 86400.0));
    add_common(*quota, options);
}

/// What an operator asks first.
void add_operator_commands(CLI::App& app, CtlOptions& options) {
    auto* health = app.add_subcommand(
        "health", "Whether the daemon is well, with the time of a round trip (exit code 1: not)");
    add_common(*health, options);
    auto* events = app.add_subcommand("events", "The newest lines of the daemon's log");
    events->add_option("--last", options.last, "The newest N (default 20); 0: all there are")
        ->type_name("N")
        ->check(whole_number(true));
    add_common(*events, options);
    auto* inspect =
        app.add_subcommand("inspect", "All that has an id or a name, and what belongs to it");
    inspect->add_option("ID", options.subject, "An id, a name, or the pid of a session")
        ->required();
    add_common(*inspect, options);
    auto* evict = app.add_subcommand(
        "evict", "End the process of a session, or all of an arena; others get their memory");
    evict->add_option("SUBJECT", options.subject, "A session's id, or arena:NAME")->required();
    evict->add_option("--grace", options.grace, "From SIGTERM to SIGKILL (default 10)")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.0, 3600.0));
    add_common(*evict, options);
    auto* env = app.add_subcommand(
        "env", "The environment variables that count, and their values (works without a daemon)");
    env->add_flag("--json", options.json, "Print JSON");
    auto* completion =
        app.add_subcommand("completion", "The script that completes this command line in a shell");
    completion->add_option("SHELL", options.subject, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

/// What shows the work of the control loop.
void add_decisions(CLI::App& app, CtlOptions& options) {
    auto* decisions = app.add_subcommand("decisions", "What the control loop decided");
    decisions->add_option("--last", options.last, "The newest N (default 20); 0: all there are")
        ->type_name("N")
        ->check(whole_number(true));
    add_common(*decisions, options);
    auto* why = app.add_subcommand("why", "One decision stage by stage, with its numbers");
    why->add_option("ID", options.decision_id, "From fabricctl decisions")
        ->required()
        ->check(whole_number());
    add_common(*why, options);
    auto* replay = app.add_subcommand(
        "replay", "Run a decision journal through the loop again (works without a daemon)");
    replay->add_option("FILE", options.file, "Journal: decisions in the state folder of fabricd")
        ->required();
    replay
        ->add_option("--set", options.settings,
                     "Another value for a key of section [control], such as gain=0.1")
        ->type_name("KEY=VALUE");
    replay->add_flag("--json", options.json, "Print JSON");
}

void add_tune(CLI::App& app, CtlOptions& options) {
    auto* tune = app.add_subcommand(
        "tune", "Measure this machine and keep the sizes at which groups change their ways");
    tune->add_option("--ranks", options.ranks, "World sizes to measure (default 2 4)")
        ->type_name("N")
        ->check(CLI::Range(2, 256));
    tune->add_option("--output", options.output,
                     "File to write (default: $FABRIC_TUNING, ~/.cache/fabricd/tuning.conf)")
        ->type_name("PATH");
    tune->add_option("--emulate", options.emulate,
                     "Measure on this machine instead: a preset of fabricd --emulate list, or the "
                     "path of a machine file")
        ->type_name("MACHINE");
    tune->add_option("--slow-motion", options.slow_motion,
                     "With --emulate: every access takes so many times as long (default 1)")
        ->type_name("N")
        ->check(CLI::Range(1, 1000));
    tune->add_flag("--quick", options.quick, "One short round: a first idea, not to be kept");
    tune->add_flag("--json", options.json, "Print JSON");
}

Parser::Parser(CtlOptions& options) {
    app.name("fabricctl");
    app.add_flag("-V,--version", version, "Print the version");
    // None at all is complained about in our own words.
    app.require_subcommand(0, 1);
    // What can be watched. All of them get the same options below.
    const CLI::App* views[] = {
        app.add_subcommand("status", "The daemon and its pool in a few lines"),
        app.add_subcommand("pools", "The pool: where it is and how full"),
        app.add_subcommand("arenas", "The arenas: one per job"),
        app.add_subcommand("regions", "The regions and tensors inside arenas"),
        app.add_subcommand("sessions", "The attached processes"),
        app.add_subcommand("groups", "The groups of ranks, and which of them died"),
        app.add_subcommand("devices", "The devices: speed, memory, vGPU quota and what is used"),
        app.add_subcommand("shards", "The shards: where they are, and which of them move"),
        app.add_subcommand("waiting",
                           "The operations in which ranks wait, and the ranks that are late"),
        app.add_subcommand("top",
                           "Training rates, load, arenas, sessions and groups, again and again"),
    };
    for (const CLI::App* view : views) {
        auto* command = app.get_subcommand(view->get_name());
        add_common(*command, options);
        add_watch(*command, watch, options);
    }
    app.get_subcommand("regions")
        ->add_option("--arena", options.arena_id, "Only those of the arena with this id")
        ->type_name("ID")
        ->check(whole_number());
    app.get_subcommand("devices")
        ->add_option("--file", options.file,
                     "Check this device file and show it; works without a daemon")
        ->type_name("PATH");
    auto* discover =
        app.add_subcommand("discover", "What this host offers as a pool (works without a daemon)");
    discover->add_flag("--json", options.json, "Print JSON");
    add_tune(app, options);
    add_migrate(app, *this, options);
    add_quota(app, *this, options);
    add_operator_commands(app, options);
    add_decisions(app, options);
    auto* drain = app.add_subcommand("drain", "Take no new sessions and arenas");
    drain->add_flag("--off", options.drain_off, "Take them again");
    add_common(*drain, options);
    add_wait(*drain, wait, "Wait until all sessions have ended, at most this long");
    add_vgpu_commands(app, options, vgpu_bytes);
    auto* shutdown = app.add_subcommand("shutdown", "End the daemon");
    add_common(*shutdown, options);
    add_wait(*shutdown, wait, "Wait until it has ended, at most this long (default 10)");
    app.footer(kExamples);  // last: commands would inherit it
}

/// What a value is, by the name that --help shows for it.
void complete_value(CompletedOption& completed, const CLI::Option& option) {
    using Value = CompletedOption::Value;
    const std::string type = option.get_type_name();
    const bool is_flag = option.get_items_expected_max() == 0;
    completed.value = is_flag                                                ? Value::kNone
                      : type == "PATH" || option.get_single_name() == "FILE" ? Value::kFile
                                                                             : Value::kAny;
}

std::vector<CompletedOption> completed_options(const CLI::App& app) {
    std::vector<CompletedOption> options;
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_lnames().empty()) continue;
        CompletedOption completed{"--" + option->get_lnames().front(), option->get_description()};
        complete_value(completed, *option);
        if (completed.name == "--arena") {
            completed.value = CompletedOption::Value::kWords;
            completed.lines =
                "fabricctl arenas --json 2>/dev/null | grep -o '\"id\":[0-9]*' | cut -d: -f2";
        } else if (completed.name == "--emulate") {
            completed.value = CompletedOption::Value::kWords;
            completed.lines = "fabricd --emulate list 2>/dev/null | tail -n +2 | cut -d' ' -f1";
        }
        options.push_back(completed);
    }
    return options;
}

/// The words that stand alone: of migrate after the shard, of completion the shells.
CompletedOption completed_argument(const CLI::App& command) {
    CompletedOption argument;
    for (const CLI::Option* option : command.get_options()) {
        if (!option->get_lnames().empty()) continue;
        argument.help = option->get_description();
        complete_value(argument, *option);
        const std::string name = option->get_single_name();
        if (name == "TARGET") argument.words = {"here", "arena:", "device:", "node:"};
        if (name == "SHELL") argument.words = {"bash", "zsh", "fish"};
        if (!argument.words.empty()) argument.value = CompletedOption::Value::kWords;
    }
    return argument;
}

CtlParse usage(const std::string& line) {
    return {CtlExit::kUsage, "fabricctl: " + line + " (fabricctl --help)\n"};
}

/// The first word that is no option, when it is no command of `app`: one line that says so. CLI11
/// would call it an argument that was not expected.
std::optional<CtlParse> unknown_command(CLI::App& app, int argc, const char* const* argv) {
    if (argc < 2 || argv[1][0] == '-') return {};
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
    if (std::find(names.begin(), names.end(), argv[1]) != names.end()) return {};
    return usage(std::string("unknown command '") + argv[1] + "'" + did_you_mean(argv[1], names));
}

/// What CLI11 says of words that are left over, with the option that may have been meant.
std::string left_over(CLI::App& app, const std::string& said) {
    const auto chosen = app.get_subcommands();
    const auto words = app.remaining(true);
    if (words.empty() || words[0].compare(0, 2, "--") != 0) return said;
    std::vector<std::string> known;
    for (const CLI::Option* option : (chosen.empty() ? app : *chosen.front()).get_options()) {
        for (const auto& name : option->get_lnames()) known.push_back("--" + name);
    }
    return "unknown option '" + words[0] + "'" + did_you_mean(words[0], known);
}

CompletedProgram completed_program(const CLI::App& app) {
    CompletedProgram program{"fabricctl", completed_options(app), {}};
    for (const CLI::App* command : app.get_subcommands({})) {
        program.commands.push_back({command->get_name(), command->get_description(),
                                    completed_options(*command), completed_argument(*command)});
    }
    return program;
}

}  // namespace

// CLI11 reports by exceptions only. They end here, and its types do not leave this file.
CtlParse parse_ctl_options(int argc, const char* const* argv, CtlOptions& options) {
    Parser parser(options);
    auto& app = parser.app;
    if (const auto unknown = unknown_command(app, argc, argv)) return *unknown;
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        return {CtlExit::kOk, app.help()};  // of the command, when there is one
    } catch (const CLI::ExtrasError& error) {
        return usage(left_over(app, error.what()));
    } catch (const CLI::ParseError& error) {
        return usage(error.what());
    }
    if (parser.version) return {CtlExit::kOk, std::string("fabricctl ") + FABRIC_VERSION + "\n"};
    const auto chosen = app.get_subcommands();
    if (chosen.empty()) return usage("a command is missing");

    // There is one: require_subcommand(0, 1) lets no second one through.
    const CLI::App& command = *chosen.front();
    options.command = command.get_name();
    // An option belongs to its command: asking for one that this command lacks would throw.
    const auto given = [&command](const char* name) {
        const auto* option = command.get_option_no_throw(name);
        return option != nullptr && option->count() > 0;
    };
    if (given("--watch") || options.command == "top") {
        // Without a value the parser leaves a zero, which no interval may be.
        options.watch = parser.watch > 0.0 ? parser.watch : kWatchSeconds;
    }
    const auto size = [](const std::string& text, std::uint64_t& bytes) {
        const auto parsed = fabricshm::parse_bytes(text);
        if (parsed.ok()) bytes = *parsed;
        return parsed.ok();
    };
    // After the parser is done, so that the error message can name the option and the text that
    // people wrote.
    if (given("--limit") && !size(parser.limit, options.limit_bytes)) {
        return usage("--limit: not a size: " + parser.limit);
    }
    if (options.command == "quota" && !size(parser.bytes, options.quota_bytes)) {
        return usage("BYTES: not a size: " + parser.bytes);
    }
    if (options.command == "vgpu-resize") {
        const auto bytes = fabricshm::parse_bytes(parser.vgpu_bytes);
        // Not 0: that would take the memory of running processes away. (For a user's quota 0 means
        // no limit.)
        if (!bytes.ok() || *bytes == 0) return usage("BYTES takes a size as 512MiB or 20GiB");
        options.vgpu.quota_bytes = *bytes;
    }
    if (options.command == "completion") {
        return {CtlExit::kOk, completion_script(completed_program(app), options.subject).value()};
    }
    if (given("--wait")) options.wait = parser.wait;
    if (given("--count") && !options.watch) return usage("--count needs --watch");
    if (given("--file") && options.watch) return usage("--file and --watch exclude each other");
    return {};
}

}  // namespace fabricd
