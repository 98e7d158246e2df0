#include "fabricd/ctl/ctl_options.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>

#include "fabricd/config/nearest_word.hpp"
#include "fabricd/ctl/ctl_command.hpp"
#include "libfabricshm/base/empty_values.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/base/version.hpp"

namespace fabricd {

namespace {

constexpr double kWatchSeconds = 1.0;

constexpr const char* kExamples =
    "\nExamples:\n"
    "  fabricctl discover                 what this host offers, and which pool auto takes\n"
    "  fabricctl doctor                   what is wrong with it, and the commands that mend it\n"
    "  fabricctl status                   one look at the daemon\n"
    "  fabricctl top                      training, load, arenas and sessions, once per second\n"
    "  fabricctl waiting                  which rank is late, and in what\n"
    "  fabricctl trace --job job -o t.json   what its ranks do, for ui.perfetto.dev\n"
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
    "  fabricctl hosts                    the cluster: which hosts are up, lost or fenced\n"
    "  fabricctl shutdown                 end the daemon; sessions go on and find the next\n"
    "\nExit codes: 0 done, 1 failed, 2 wrong usage, 3 no daemon is running.\n";

/// The parser, and the places it writes to that are no fields of CtlOptions.
struct Parser {
    explicit Parser(CtlOptions& options);

    void add_command(const CtlCommand& row, CtlOptions& options);
    void add_argument(CLI::App& command, const CtlArgument& row, CtlOptions& options);
    CLI::Option* add_value(CLI::App& command, const CtlArgument& row, CtlOptions& options);
    CLI::Option* add_seconds(CLI::App& command, const CtlArgument& row, const CtlSeconds& value,
                             CtlOptions& options);
    CLI::Option* add_size(CLI::App& command, const CtlArgument& row, const CtlSize& value,
                          CtlOptions& options);
    CLI::Option* add_time(CLI::App& command, const CtlArgument& row, const CtlTime& value,
                          CtlOptions& options);

    CLI::App app{"Looks at fabricd and steers it. Run 'fabricctl COMMAND --help' for its options."};
    double watch = 0.0;
    bool version = false;
    std::map<const CLI::Option*, const CtlArgument*> rows;
    // Texts and numbers that become other things after the parsing. A deque: they stay where they
    // are. What `finish` returns is wrong with one of them.
    std::deque<std::string> texts;
    std::deque<double> numbers;
    std::vector<std::function<std::string()>> finish;
};

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

// Seconds. CLI11's range takes "nan", which is neither below nor above it.
CLI::Validator seconds_within(double low, double high) {
    const auto check = [low, high](const std::string& text) {
        double seconds = 0;
        const bool is_number = CLI::detail::lexical_cast(text, seconds);
        if (is_number && seconds >= low && seconds <= high) return std::string();
        char words[100];
        std::snprintf(words, sizeof words, " is no number of seconds from %g to %g", low, high);
        return "\"" + text + "\"" + words;
    };
    return {check, ""};
}

// Every command that asks the daemon has these three: fabricctl is used by scripts as much as by
// people.
void add_common(CLI::App& app, CtlOptions& options) {
    app.add_flag("--json", options.json, "Print JSON, one line per picture");
    app.add_option("--socket", options.socket,
                   "Admin socket (default: $FABRIC_ADMIN_SOCKET, $XDG_RUNTIME_DIR/fabricd, "
                   "/run/fabricd, /tmp/fabricd-UID)")
        ->type_name("PATH");
    app.add_option("--timeout", options.timeout,
                   "How long fabricd may take for an answer (default 5)")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.1, 3600.0));
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

template <typename... Cases>
struct Overloaded : Cases... {
    using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

CLI::Option* Parser::add_seconds(CLI::App& command, const CtlArgument& row, const CtlSeconds& value,
                                 CtlOptions& options) {
    const auto range = seconds_within(value.low, value.high);
    if (const auto* plain = std::get_if<CtlField<double>>(&value.field)) {
        return command.add_option(row.name, (*plain)(options), row.help)->check(range);
    }
    double& given = numbers.emplace_back();
    auto* option = command.add_option(row.name, given, row.help)->check(range);
    auto& field = std::get<CtlField<std::optional<double>>>(value.field)(options);
    finish.emplace_back([option, &given, &field] {
        if (option->count() > 0) field = given;
        return std::string();
    });
    return option;
}

// Sizes and times have units, which parse_bytes() and parse_duration() know and the parser does
// not.
CLI::Option* Parser::add_size(CLI::App& command, const CtlArgument& row, const CtlSize& value,
                              CtlOptions& options) {
    std::string& given = texts.emplace_back();
    auto* option = command.add_option(row.name, given, row.help);
    auto& field = value.field(options);
    finish.emplace_back([option, &given, &field, name = row.name, zero = value.zero] {
        if (option->count() == 0) return std::string();
        const auto bytes = fabricshm::parse_bytes(given);
        if (bytes.ok()) field = *bytes;
        if (bytes.ok() && (zero || *bytes != 0)) return std::string();
        return name +
               (zero ? ": not a size: " + given : std::string(" takes a size as 512MiB or 20GiB"));
    });
    return option;
}

CLI::Option* Parser::add_time(CLI::App& command, const CtlArgument& row, const CtlTime& value,
                              CtlOptions& options) {
    std::string& given = texts.emplace_back();
    auto* option = command.add_option(row.name, given, row.help);
    auto& field = value.field(options);
    finish.emplace_back([option, &given, &field, name = row.name] {
        if (option->count() == 0) return std::string();
        const auto length = fabricshm::parse_duration(given);
        if (length.ok() && *length >= fabricshm::Duration::zero()) field = *length;
        return field ? std::string() : std::string(name) + " takes a time as 90s, 12h or 7d";
    });
    return option;
}

// One case for each kind of value; a kind without one does not compile.
CLI::Option* Parser::add_value(CLI::App& command, const CtlArgument& row, CtlOptions& options) {
    const auto flag = [&](const CtlFlag& value) -> CLI::Option* {
        return command.add_flag(row.name, value.field(options), row.help);
    };
    const auto text = [&](const CtlText& value) {
        auto* option = command.add_option(row.name, value.field(options), row.help);
        return value.words.empty() ? option : option->check(CLI::IsMember(value.words));
    };
    const auto several = [&](const CtlTexts& value) {
        return command.add_option(row.name, value.field(options), row.help);
    };
    const auto whole = [&](const CtlWhole& value) {
        return command.add_option(row.name, value.field(options), row.help)
            ->check(whole_number(value.from_zero));
    };
    const auto number = [&](const CtlNumber& value) {
        const auto add = [&](auto field) {
            return command.add_option(row.name, field(options), row.help)
                ->check(CLI::Range(value.low, value.high));
        };
        return std::visit(add, value.field);
    };
    const auto seconds = [&](const CtlSeconds& value) {
        return add_seconds(command, row, value, options);
    };
    const auto size = [&](const CtlSize& value) { return add_size(command, row, value, options); };
    const auto time = [&](const CtlTime& value) { return add_time(command, row, value, options); };
    const auto list = [&](const CtlList& value) {
        return command.add_option(row.name, value.field(options), row.help)
            ->delimiter(',')
            ->allow_extra_args(false);
    };
    return std::visit(Overloaded{flag, text, several, whole, number, seconds, size, time, list},
                      row.value);
}

void Parser::add_argument(CLI::App& command, const CtlArgument& row, CtlOptions& options) {
    auto* option = add_value(command, row, options);
    if (row.name[0] != '-' && !row.can_be_left_out) option->required();
    if (row.type != nullptr) option->type_name(row.type);
    rows[option] = &row;
}

void Parser::add_command(const CtlCommand& row, CtlOptions& options) {
    auto& command = *app.add_subcommand(row.name, row.help);
    for (const CtlArgument& argument : row.arguments) add_argument(command, argument, options);
    if (!std::holds_alternative<CtlRun>(row.handler)) add_common(command, options);
    if (std::holds_alternative<View>(row.handler)) add_watch(command, watch, options);
}

Parser::Parser(CtlOptions& options) {
    app.name("fabricctl");
    app.add_flag("-V,--version", version, "Print the version");
    // None at all is reported in our own words.
    app.require_subcommand(0, 1);
    for (const CtlCommand& row : ctl_commands()) add_command(row, options);
    fabricshm::refuse_empty_values(app);
    app.footer(kExamples);  // last: commands would inherit it
}

/// What a shell completes for a value: what its row suggests, else by the name that --help shows.
CompletedOption completed_value(const Parser& parser, const CLI::Option& option) {
    using Value = CompletedOption::Value;
    CompletedOption completed{"", option.get_description()};
    const std::string type = option.get_type_name();
    const bool is_flag = option.get_items_expected_max() == 0;
    completed.value = is_flag                                                ? Value::kNone
                      : type == "PATH" || option.get_single_name() == "FILE" ? Value::kFile
                                                                             : Value::kAny;
    const auto known = parser.rows.find(&option);
    if (known == parser.rows.end()) return completed;
    const CtlArgument& row = *known->second;
    completed.words = row.suggested;
    completed.lines = row.suggested_by;
    if (const auto* text = std::get_if<CtlText>(&row.value); text && !text->words.empty()) {
        completed.words = text->words;
    }
    if (!completed.words.empty() || !completed.lines.empty()) completed.value = Value::kWords;
    return completed;
}

std::vector<CompletedOption> completed_options(const Parser& parser, const CLI::App& app) {
    std::vector<CompletedOption> options;
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_lnames().empty()) continue;
        options.push_back(completed_value(parser, *option));
        options.back().name = "--" + option->get_lnames().front();
    }
    return options;
}

/// The words that stand alone: of migrate after the shard, of completion the shells.
CompletedOption completed_argument(const Parser& parser, const CLI::App& command) {
    CompletedOption argument;
    for (const CLI::Option* option : command.get_options()) {
        if (option->get_lnames().empty()) argument = completed_value(parser, *option);
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

// To the parser an empty word behind an option that may stand alone is no word.
bool is_watch_empty(int argc, const char* const* argv) {
    for (int i = 2; i < argc; ++i) {
        if (*argv[i] == 0 && std::string(argv[i - 1]) == "--watch") return true;
        if (std::string(argv[i]) == "--watch=") return true;
    }
    return false;
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
    // The command takes it, so it was not behind it.
    const std::string option = words[0].substr(0, words[0].find('='));
    if (!chosen.empty() && std::find(known.begin(), known.end(), option) != known.end()) {
        return "option '" + option + "' belongs behind the command: fabricctl " +
               chosen.front()->get_name() + " ... " + words[0];
    }
    return "unknown option '" + words[0] + "'" + did_you_mean(words[0], known);
}

// What the parser can't know: which of the words of hosts belong together. "": nothing.
std::string wrong_with_hosts(const CtlOptions& options) {
    if (options.host_action.empty()) {
        return options.confirmed ? "--confirmed is of hosts fence HOST" : "";
    }
    if (options.subject.empty()) return "hosts fence takes the name of a host";
    if (options.confirmed) return "";
    return "hosts fence needs --confirmed: what the host may still write to is given to others; "
           "make sure that its power is off";
}

// The same of jobs.
std::string wrong_with_jobs(const CtlOptions& options) {
    const JobOrder& job = options.job;
    const bool removes = job.action == "remove";
    if (!removes && job.action != "agent" && !job.more.empty()) {
        return "'" + job.more.front() + "' is one word too many: jobs remove alone takes several";
    }
    if (!removes && job.older_than) return "--older-than is of jobs remove";
    if (!job.outcomes.empty() && !job.older_than) return "--state needs --older-than";
    if (removes && job.older_than.has_value() != job.what.empty()) {
        return "jobs remove takes jobs, or --older-than TIME";
    }
    static const std::vector<std::string> kOutcomes = {"ok", "failed", "cancelled"};
    for (const std::string& one : job.outcomes) {
        if (std::find(kOutcomes.begin(), kOutcomes.end(), one) != kOutcomes.end()) continue;
        return "--state takes ok, failed and cancelled, not \"" + one + "\"" +
               did_you_mean(one, kOutcomes);
    }
    return "";
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
    if (is_watch_empty(argc, argv)) return usage("--watch: the value is empty");
    // An option belongs to its command: asking for one that this command lacks would throw.
    const auto given = [&command](const char* name) {
        const auto* option = command.get_option_no_throw(name);
        return option != nullptr && option->count() > 0;
    };
    if (given("--watch") || options.command == "top") {
        // Without a value the parser leaves a zero, which no interval may be.
        options.watch = parser.watch > 0.0 ? parser.watch : kWatchSeconds;
    }
    // After the parser is done, so that the error message can name the option and the text that
    // people wrote.
    for (const auto& finish : parser.finish) {
        if (const std::string wrong = finish(); !wrong.empty()) return usage(wrong);
    }
    if (given("--count") && !options.watch) return usage("--count needs --watch");
    if (given("--file") && options.watch) return usage("--file and --watch exclude each other");
    if (const std::string wrong = wrong_with_hosts(options); !wrong.empty()) return usage(wrong);
    if (const std::string wrong = wrong_with_jobs(options); !wrong.empty()) return usage(wrong);
    return {};
}

CompletedProgram ctl_program() {
    CtlOptions options;
    const Parser parser(options);
    CompletedProgram program{"fabricctl", completed_options(parser, parser.app), {}};
    for (const CLI::App* command : parser.app.get_subcommands({})) {
        program.commands.push_back({command->get_name(), command->get_description(),
                                    completed_options(parser, *command),
                                    completed_argument(parser, *command)});
    }
    return program;
}

}  // namespace fabricd
