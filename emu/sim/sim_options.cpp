#include "emu/sim/sim_options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "emu/sim/sim_command.hpp"
#include "emu/sim/sim_flags.hpp"
#include "emu/sim/sim_units.hpp"
#include "emu/sim/topology_file.hpp"
#include "libfabricshm/base/empty_values.hpp"
#include "libfabricshm/base/version.hpp"
#include "libfabricshm/collective/tuning.hpp"

namespace emu {

using fabricshm::Bytes;

namespace {

constexpr const char* kExamples =
    "\nExamples:\n"
    "  fabric-sim allreduce --devices 64 --sizes 8KiB,1MiB,256MiB\n"
    "  fabric-sim allreduce --topology rack.toml --json\n"
    "  fabric-sim crossover --topology tree --placement device --oversubscription 4\n"
    "  fabric-sim stragglers --devices 32 --size 64MiB --slow 4 --late 1ms\n"
    "  fabric-sim bandwidth --model resnet50 --batch 32 --tflops 20 --devices 8,64\n"
    "  fabric-sim training --devices 64 --stragglers 5 --traces 20\n"
    "  fabric-sim control --devices 8,64,256,1024 --stragglers 3 --failures 1\n"
    "  fabric-sim cluster --hosts 2,64,1024 --failures 7\n"
    "  fabric-sim network --hosts 2,16 --ranks 8 --bandwidth 12.5GB/s\n"
    "  fabric-sim data --cache 0.25,0.5 --source 0.4 --latency 50ms\n"
    "  fabric-sim validate            measures this machine; half a minute\n"
    "\nSizes: B, KiB, MiB, GiB. Times: ns, us, ms, s. Rates: MB/s, GB/s.\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage.\n";

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> words;
    std::string word;
    for (const char c : text + ",") {
        if (c != ',') {
            word += c;
        } else if (!word.empty()) {
            words.push_back(std::exchange(word, ""));
        }
    }
    return words;
}

/// Turns the texts into values; the first that is none is named.
class Finish {
  public:
    Finish(SimOptions& options, const SimTexts& texts) : options_(options), texts_(texts) {}

    std::string error_message() {
        // Everything is finished, also what the command does not use: the texts have defaults that
        // are right, and only what the user wrote can be wrong.
        finish_lists();
        finish_topology();
        options_.stragglers.bytes = size("--size", texts_.size);
        options_.stragglers.late = length("--late", texts_.late);
        options_.workload.gradient = size("--gradient", texts_.gradient);
        options_.workload.move = length("--move", texts_.move);
        options_.workload.recovery = length("--recovery", texts_.recovery);
        options_.workload.steps = options_.trace.steps;
        options_.validate.sample = std::chrono::duration_cast<fabricshm::Duration>(
            std::chrono::duration<double>(std::min(length("--sample", texts_.sample), 10.0)));
        finish_model();
        finish_control();
        finish_cluster();
        finish_network();
        finish_loading();
        if (texts_.trigger != "async" && texts_.trigger != "sync") {
            report("--trigger: async or sync");
        }
        if (texts_.trigger == "sync") options_.trigger = fabricshm::Trigger::kSync;
        if (texts_.json && texts_.csv) report("--json and --csv: one of them");
        options_.format = texts_.json ? Format::kJson : texts_.csv ? Format::kCsv : Format::kText;
        return error_message_;
    }

  private:
    // The first error message counts: later ones may only follow from it.
    void report(const std::string& what) {
        if (error_message_.empty()) error_message_ = what;
    }

    Bytes size(const char* option, const std::string& text) {
        const auto bytes = fabricshm::parse_bytes(text);
        const bool fits = bytes.ok() && *bytes >= 4 && *bytes <= 64 * fabricshm::kGiB;
        if (!fits) report(std::string(option) + ": \"" + text + "\" is no size of 4 B to 64 GiB");
        // Down to whole floats, which is what the vectors hold.
        return fits ? *bytes / 4 * 4 : 4;
    }

    Seconds length(const char* option, const std::string& text) {
        const auto parsed = parse_seconds(text);
        if (!parsed.ok()) {
            report(std::string(option) + ": \"" + text + "\" is no time like 1.5ms");
            return 0;
        }
        return *parsed;
    }

    void finish_lists() {
        for (const std::string& word : split(texts_.sizes)) {
            options_.sizes.push_back(size("--sizes", word));
        }
        for (const std::string& word : split(texts_.algorithms)) {
            const auto algorithm = fabricshm::parse_algorithm(word);
            if (!algorithm.ok()) report("--algorithms: there is no \"" + word + "\"");
            if (algorithm.ok()) options_.algorithms.push_back(*algorithm);
        }
        for (const std::string& word : split(texts_.devices)) {
            const bool digits =
                // Four digits cannot overflow, and 8192 has four.
                word.size() <= 4 && std::all_of(word.begin(), word.end(), ::isdigit);
            const int count = digits ? std::stoi(word) : 0;
            if (count < 2 || count > 8192) report("--devices: \"" + word + "\" is not 2 to 8192");
            options_.devices.push_back(count);
        }
    }

    void finish_control() {
        ControlQuery& query = options_.control;
        query.config.window = std::chrono::duration_cast<fabricshm::Duration>(
            std::chrono::duration<double>(length("--window", texts_.window)));
        if (query.config.window <= fabricshm::Duration::zero()) report("--window: too short");
        query.speeds.clear();
        for (const std::string& word : split(texts_.speeds)) {
            char* end = nullptr;
            const double speed = std::strtod(word.c_str(), &end);
            // `!(a && b)`: refuses NaN as well.
            if (*end != 0 || !(speed > 0 && speed <= 1e6)) {
                report("--speeds: \"" + word + "\" is no speed above 0");
            }
            query.speeds.push_back(speed);
        }
        if (query.speeds.empty()) report("--speeds: at least one");
    }

    // Whole numbers of so many digits at most, which cannot overflow.
    std::vector<int> counts(const char* option, const std::string& text, int least, int most) {
        std::vector<int> found;
        for (const std::string& word : split(text)) {
            const bool digits =
                word.size() <= 4 && std::all_of(word.begin(), word.end(), ::isdigit);
            const int count = digits ? std::stoi(word) : -1;
            if (count < least || count > most) {
                report(std::string(option) + ": \"" + word + "\" is not " + std::to_string(least) +
                       " to " + std::to_string(most));
            }
            found.push_back(count);
        }
        return found;
    }

    Seconds length_within(const char* option, const std::string& text, Seconds least,
                          Seconds most) {
        const Seconds found = length(option, text);
        // `!(a && b)`: refuses NaN as well.
        if (!(found >= least && found <= most)) {
            report(std::string(option) + ": " + format_seconds(least) + " to " +
                   format_seconds(most));
        }
        return found;
    }

    void finish_cluster() {
        ClusterScenario& scenario = options_.cluster.scenario;
        options_.cluster.hosts = counts("--hosts", texts_.hosts, 2, 1024);
        scenario.ttl = length_within("--ttl", texts_.ttl, 2, 300);
        scenario.calm = length_within("--calm", texts_.calm, 1, 3600);
        scenario.length = length_within("--length", texts_.length_of_failures, 1, 86400);
        scenario.reboot = length_within("--reboot", texts_.reboot, 1, 3600);
        scenario.fence_takes = length_within("--fence-time", texts_.fence, 0.001, 600);
        scenario.has_fence_command = !texts_.no_fence;
        scenario.etcd = texts_.one_member ? etcd_of_one() : etcd_of_three();
        EtcdFigures& etcd = scenario.etcd;
        for (Latency* each : {&etcd.grant, &etcd.keep, &etcd.write, &etcd.read, &etcd.watch}) {
            each->median *= texts_.store_slow;
            each->p99 *= texts_.store_slow;
        }
        for (int kind = 0; kind < kFailureKinds && texts_.kinds.empty(); ++kind) {
            scenario.kinds.push_back(static_cast<FailureKind>(kind));
        }
        for (const std::string& word : split(texts_.kinds)) {
            int kind = 0;
            while (kind < kFailureKinds && word != name_of_failure(kind)) ++kind;
            if (kind == kFailureKinds) report("--kinds: there is no \"" + word + "\"");
            scenario.kinds.push_back(static_cast<FailureKind>(kind));
        }
        if (scenario.kinds.empty()) report("--kinds: at least one");
    }

    Rate rate(const char* option, const std::string& text) {
        const auto parsed = parse_rate(text);
        if (!parsed.ok() || *parsed <= 0) {
            report(std::string(option) + ": \"" + text + "\" is no rate like 1.25GB/s");
            return 1;
        }
        return *parsed;
    }

    void finish_network() {
        NetworkQuery& query = options_.network;
        query.hosts = options_.cluster.hosts;
        query.ranks = counts("--ranks", texts_.ranks, 1, 64);
        if (query.ranks.empty()) report("--ranks: at least one");
        query.figures.bandwidth = rate("--bandwidth", texts_.bandwidth);
        query.figures.memory = rate("--memory", texts_.memory);
        query.figures.latency = length("--latency", texts_.latency);
        query.figures.message = length("--message", texts_.message);
    }

    void finish_loading() {
        LoadingQuery& query = options_.loading;
        query.figures.sample_bytes = size("--sample", texts_.sample_bytes);
        // CLI11's ranges let NaN through.
        if (std::isnan(query.figures.samples_per_s)) report("--rate: no number");
        if (std::isnan(query.figures.source)) report("--source: no number");
        query.figures.latency = length_within("--latency", texts_.source_latency, 0, 3600);
        for (const std::string& word : split(texts_.cache)) {
            char* end = nullptr;
            const double share = std::strtod(word.c_str(), &end);
            // `!(a && b)`: refuses NaN as well.
            if (*end != 0 || !(share >= 0 && share <= 1)) {
                report("--cache: \"" + word + "\" is no share of 0 to 1");
            }
            query.caches.push_back(share);
        }
    }

    void finish_topology() {
        TopologySpec& spec = options_.spec;
        const LinkPreset* link = find_link_preset(texts_.link);
        if (link == nullptr) report("--link: there is no \"" + texts_.link + "\"");
        if (link != nullptr) spec.link = *link;
        if (texts_.placement == "home") spec.placement = Placement::kHome;
        if (texts_.placement == "device") spec.placement = Placement::kDevice;
        const bool known = texts_.placement.empty() || texts_.placement == "interleaved" ||
                           texts_.placement == "home" || texts_.placement == "device";
        if (!known) report("--placement: interleaved, home or device");
        spec.shape = options_.shape;
        // Commands for one size take the first.
        if (!options_.devices.empty()) spec.devices = options_.devices.front();
    }

    void finish_model() {
        BandwidthQuery& query = options_.bandwidth;
        query.spec = options_.spec;
        query.model = texts_.model;
        query.parameters = texts_.parameters;
        query.bucket = size("--bucket", texts_.bucket);
        if (!texts_.step.empty()) query.step = length("--step", texts_.step);
        for (const ModelPreset& preset : model_presets()) {
            if (texts_.model != preset.name) continue;
            if (query.parameters <= 0) query.parameters = preset.parameters;
            const double operations = preset.operations * texts_.batch;
            // A given step wins over the model's: its length depends on the device, which the user
            // knows better.
            if (texts_.step.empty()) query.step = operations / (texts_.tflops * 1e12);
        }
        if (options_.command == "bandwidth" && (query.parameters <= 0 || query.step <= 0)) {
            report("--model: \"" + texts_.model + "\" is unknown: give --parameters and --step");
        }
    }

    SimOptions& options_;
    const SimTexts& texts_;
    std::string error_message_;
};

SimExit usage(const std::string& line) {
    return {2, "fabric-sim: " + line + " (fabric-sim --help)\n"};
}

}  // namespace

std::optional<SimExit> parse_sim_options(int argc, const char* const* argv, SimOptions& options) {
    CLI::App app{
        "Simulates collectives on topologies of 2 to 8192 devices. Run 'fabric-sim COMMAND "
        "--help' for its options."};
    SimTexts texts;
    app.name("fabric-sim");
    app.add_flag("-V,--version", texts.version, "Print the version");
    app.require_subcommand(0, 1);
    for (const SimCommand& row : sim_commands()) {
        CLI::App& command = *app.add_subcommand(row.name, row.help);
        row.add_flags(command, options, texts);
        add_output_flags(command, options, texts);
    }
    fabricshm::refuse_empty_values(app);
    app.footer(kExamples);
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        return SimExit{0, app.help()};
    } catch (const CLI::ParseError& error) {
        return usage(error.what());
    }
    if (texts.version) return SimExit{0, std::string("fabric-sim ") + FABRIC_VERSION + "\n"};
    const auto chosen = app.get_subcommands();
    if (chosen.empty()) return usage("a command is missing");
    // The error messages below depend on it: a model has to be known for `bandwidth` only.
    options.command = chosen.front()->get_name();
    const std::string error_message = Finish(options, texts).error_message();
    if (!error_message.empty()) return usage(error_message);
    return std::nullopt;
}

std::variant<Topology, std::string> topology_of(const SimOptions& options) {
    const bool made =
        options.shape == "star" || options.shape == "tree" || options.shape == "chain";
    if (!made) {
        // The count is in the file; a second one could only contradict it.
        if (!options.devices.empty()) return "--devices: a file says itself how many there are";
        auto read = read_topology_file(options.shape);
        if (auto* error_message = std::get_if<std::string>(&read))
            return "--topology: " + *error_message;
        return std::get<Topology>(std::move(read));
    }
    auto topology = make_topology(options.spec);
    if (!topology.ok()) {
        return "--topology " + options.shape +
               ": these numbers make no topology (a chain has at "
               "most 512 devices)";
    }
    const std::string error_message = topology->error_message();
    if (!error_message.empty()) return "--topology " + options.shape + ": " + error_message;
    return *topology;
}

}  // namespace emu
