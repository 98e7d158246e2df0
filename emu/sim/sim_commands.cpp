#include "emu/sim/sim_commands.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "libfabricshm/base/check.hpp"

namespace emu {

using fabricshm::Algorithm;
using fabricshm::Bytes;
using fabricshm::kKiB;
using fabricshm::kMiB;

namespace {

// Defaults by command, after parsing: the same option means another list in each.
template <typename T>
void fall_back(std::vector<T>& list, std::vector<T> fallback) {
    if (list.empty()) list = std::move(fallback);
}

// Of the commands for one topology.
std::variant<Topology, SimFailure> one_topology(const SimOptions& options) {
    auto made = topology_of(options);
    if (auto* error_message = std::get_if<std::string>(&made)) {
        return SimFailure{2, options.command + ": " + *error_message};
    }
    return std::get<Topology>(std::move(made));
}

double mean_of_traces(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
}

Report compare_policies(SimOptions& options, Topology topology) {
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

}  // namespace

SimOutcome simulate_allreduce(SimOptions& options) {
    auto topology = one_topology(options);
    if (auto* failure = std::get_if<SimFailure>(&topology)) return std::move(*failure);
    fall_back(options.sizes,
              {8, 1 * kKiB, 8 * kKiB, 64 * kKiB, 512 * kKiB, 4 * kMiB, 32 * kMiB, 256 * kMiB});
    fall_back(options.algorithms, {Algorithm::kDirect, Algorithm::kRing, Algorithm::kHost});
    return answer_allreduce({std::get<Topology>(std::move(topology)), options.sizes,
                             options.algorithms, options.trigger, !options.outside_arena});
}

SimOutcome simulate_crossover(SimOptions& options) {
    fall_back(options.devices, {2, 4, 8, 16, 32, 64, 128, 256});
    options.crossover.spec = options.spec;
    options.crossover.devices = options.devices;
    // A file describes one machine of one size.
    if (options.shape != "star" && options.shape != "tree" && options.shape != "chain") {
        return SimFailure{2, "crossover: --topology: star, tree or chain, since it makes several"};
    }
    return answer_crossover(options.crossover);
}

SimOutcome simulate_training(SimOptions& options) {
    auto topology = one_topology(options);
    if (auto* failure = std::get_if<SimFailure>(&topology)) return std::move(*failure);
    return compare_policies(options, std::get<Topology>(std::move(topology)));
}

SimOutcome simulate_stragglers(SimOptions& options) {
    auto topology = one_topology(options);
    if (auto* failure = std::get_if<SimFailure>(&topology)) return std::move(*failure);
    options.stragglers.topology = std::get<Topology>(std::move(topology));
    return answer_stragglers(options.stragglers);
}

SimOutcome simulate_bandwidth(SimOptions& options) {
    fall_back(options.devices, {2, 4, 8, 16, 32, 64});
    options.bandwidth.devices = options.devices;
    return answer_bandwidth(options.bandwidth);
}

SimOutcome simulate_control(SimOptions& options) {
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

SimOutcome simulate_cluster(SimOptions& options) {
    fall_back(options.cluster.hosts, {2, 8, 32, 128});
    return answer_cluster(options.cluster);
}

SimOutcome simulate_network(SimOptions& options) {
    fall_back(options.network.hosts, {2, 8, 32, 128});
    fall_back(options.sizes, {4 * kKiB, 1 * kMiB, 64 * kMiB});
    options.network.sizes = options.sizes;
    return answer_network(options.network);
}

SimOutcome simulate_data(SimOptions& options) {
    fall_back(options.loading.caches, {0.1, 0.5, 0.9});
    return answer_loading(options.loading);
}

SimOutcome simulate_validate(SimOptions& options) {
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

SimOutcome run_sim_command(SimOptions options) {
    const SimCommand* command = find_sim_command(options.command);
    FABRIC_CHECK(command != nullptr);  // or the parser would not have taken it
    return command->run(options);
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
