#include "emu/sim/sim_commands.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace emu {

using fabricshm::Algorithm;
using fabricshm::Bytes;
using fabricshm::kKiB;
using fabricshm::kMiB;

namespace {

using Outcome = std::variant<Report, SimFailure>;

// Defaults by command, after parsing: the same option means another list in each.
template <typename T>
void fall_back(std::vector<T>& list, std::vector<T> fallback) {
    if (list.empty()) list = std::move(fallback);
}

Outcome run_allreduce(SimOptions& options, Topology topology) {
    fall_back(options.sizes,
              {8, 1 * kKiB, 8 * kKiB, 64 * kKiB, 512 * kKiB, 4 * kMiB, 32 * kMiB, 256 * kMiB});
    fall_back(options.algorithms, {Algorithm::kDirect, Algorithm::kRing, Algorithm::kHost});
    return answer_allreduce({std::move(topology), options.sizes, options.algorithms,
                             options.trigger, !options.outside_arena});
}

Outcome run_crossover(SimOptions& options) {
    fall_back(options.devices, {2, 4, 8, 16, 32, 64, 128, 256});
    options.crossover.spec = options.spec;
    options.crossover.devices = options.devices;
    // A file describes one machine of one size.
    if (options.shape != "star" && options.shape != "tree" && options.shape != "chain") {
        return SimFailure{2, "crossover: --topology: star, tree or chain, since it makes several"};
    }
    return answer_crossover(options.crossover);
}

double mean_of_traces(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
}

Outcome run_training_command(SimOptions& options, Topology topology) {
    Workload& workload = options.workload;
    const std::size_t devices = topology.devices().size();
    // A device of speed 1 does a thousand samples per second, so that a batch of 100 per device
    // takes a tenth of a second.
    for (const int device : topology.devices()) {
        workload.samples_per_s.push_back(1000 *
                                         topology.nodes[static_cast<std::size_t>(device)].speed);
    }
    // A hundred milliseconds of computing in an undisturbed step.
    workload.batch = 100.0 * static_cast<double>(devices);
    workload.topology = std::move(topology);
    options.trace.devices = static_cast<int>(devices);
    Report report;
    report.query = "training";
    report.facts = {{"topology", workload.topology.name},
                    {"devices", 1.0 * static_cast<double>(devices)},
                    {"traces", 1.0 * options.traces}};
    report.columns = {"policy", "step_s", "lost_share", "regret_share", "worst_regret_share",
                      "changes"};
    const char* names[] = {"even", "proportional", "oracle"};
    for (const char* name : names) {
        std::vector<double> steps, lost, regrets, changes;
        for (int i = 0; i < options.traces; ++i) {
            TraceSpec spec = options.trace;
            // Traces of seeds 1, 2, 3, ...: the first one alone can be run again with --traces 1.
            spec.seed += static_cast<std::uint64_t>(i);
            const Trace trace = make_trace(spec);
            const auto oracle = run_training(workload, trace, oracle_policy(workload, trace));
            const std::string wanted(name);
            const auto result = wanted == "even" ? run_training(workload, trace, even_policy())
                                : wanted == "proportional"
                                    ? run_training(workload, trace, proportional_policy())
                                    : oracle;
            steps.push_back(result.total / static_cast<double>(workload.steps));
            lost.push_back(result.lost_share);
            regrets.push_back(regret(result, oracle));
            changes.push_back(static_cast<double>(result.changes));
        }
        report.rows.push_back({std::string(name), mean_of_traces(steps), mean_of_traces(lost),
                               mean_of_traces(regrets),
                               *std::max_element(regrets.begin(), regrets.end()),
                               mean_of_traces(changes)});
    }
    report.notes.push_back(
        "regret: how much longer than with an oracle that knows the next "
        "step's speeds; lost: device time spent waiting for the slowest");
    return report;
}

Outcome run_control(SimOptions& options) {
    ControlQuery& query = options.control;
    fall_back(options.devices, {8, 64, 256, 1024});
    if (options.shape != "star" && options.shape != "tree" && options.shape != "chain") {
        return SimFailure{2, "control: --topology: star, tree or chain, since it makes several"};
    }
    query.spec = options.spec;
    query.devices = options.devices;
    query.workload = options.workload;
    query.trace = options.trace;
    query.traces = options.traces;
    // Shares only: the columns of the report are about them.
    query.config.mode = "on";
    query.config.actions = "shares";
    return answer_control(query);
}

Outcome run_validate(SimOptions& options) {
    fall_back(options.devices, {2, 4});
    fall_back(options.sizes, {8, 1 * kKiB, 8 * kKiB, 64 * kKiB, 512 * kKiB, 4 * kMiB, 32 * kMiB});
    fall_back(options.algorithms, {Algorithm::kFlat, Algorithm::kDirect, Algorithm::kRing,
                                   Algorithm::kStaged, Algorithm::kHost});
    ValidateOptions& wanted = options.validate;
    wanted.worlds = options.devices;
    wanted.sizes = options.sizes;
    wanted.algorithms = options.algorithms;
    for (const int world : wanted.worlds) {
        // Processes that are forked on this host share its cores; beyond so many they measure the
        // scheduler.
        if (world > 64) return SimFailure{2, "validate: --devices: 2 to 64 can be measured here"};
    }
    auto report = validate(wanted);
    if (!report.ok()) return SimFailure{1, "validate: " + fabricshm::describe(report.error())};
    return std::move(report).value();
}

}  // namespace

std::variant<Report, SimFailure> run_sim_command(SimOptions options) {
    if (options.command == "validate") return run_validate(options);
    if (options.command == "control") return run_control(options);
    // Before a topology is made: these make their own, one per size.
    if (options.command == "crossover") return run_crossover(options);
    if (options.command == "bandwidth") {
        fall_back(options.devices, {2, 4, 8, 16, 32, 64});
        options.bandwidth.devices = options.devices;
        return answer_bandwidth(options.bandwidth);
    }
    auto made = topology_of(options);
    if (auto* error_message = std::get_if<std::string>(&made)) {
        return SimFailure{2, options.command + ": " + *error_message};
    }
    Topology& topology = std::get<Topology>(made);
    if (options.command == "allreduce") return run_allreduce(options, std::move(topology));
    if (options.command == "training") return run_training_command(options, std::move(topology));
    options.stragglers.topology = std::move(topology);
    return answer_stragglers(options.stragglers);
}

bool print_report(const Report& report, const SimOptions& options) {
    const std::string text = options.format == Format::kJson  ? as_json(report)
                             : options.format == Format::kCsv ? as_csv(report)
                                                              : as_text(report);
    if (options.output.empty()) {
        std::fputs(text.c_str(), stdout);
        // Output that did not arrive (a full disk) is a failure, however right it was.
        return std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    }
    std::ofstream file(options.output, std::ios::trunc);
    file << text;
    file.close();
    return static_cast<bool>(file);
}

}  // namespace emu
