#include "emu/sim/validate.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "emu/sim/collective_run.hpp"
#include "emu/sim/probe.hpp"
#include "emu/sim/sim_units.hpp"
#include "libfabricshm/collective/tuner.hpp"

namespace emu {

using fabricshm::Algorithm;
using fabricshm::AllreduceCall;
using fabricshm::Bytes;
using fabricshm::Result;
using fabricshm::TuneProbe;
using fabricshm::Tuning;

namespace {

double middle_round(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

struct Case {
    int world;
    Algorithm algorithm;
    Bytes bytes;
    std::vector<double> seconds;  // measured, one per round
};

// Staged is what happens to buffers outside the arena; the others are measured inside.
bool in_arena(Algorithm algorithm) {
    return algorithm != Algorithm::kStaged;
}

// Defaults, not a tuning file: the rows of a validation should mean the same everywhere.
Tuning tuning_for(int world, Algorithm algorithm) {
    Tuning tuning = fabricshm::machine_tuning(world);
    tuning.forced = algorithm;
    return tuning;
}

// The largest footprint worth probing: beyond what a core touches of the largest vector.
Bytes max_probed(const ValidateOptions& options) {
    const Bytes largest = *std::max_element(options.sizes.begin(), options.sizes.end());
    Bytes most = 256 * fabricshm::kKiB;
    while (most < 8 * largest && most < 128 * fabricshm::kMiB) most *= 2;
    return most;
}

Result<void> measure_round(const ValidateOptions& options, std::vector<Case>& cases) {
    for (const int world : options.worlds) {
        for (const Algorithm algorithm : options.algorithms) {
            fabricshm::TuneOptions wanted;
            wanted.world = world;
            wanted.sample = options.sample;
            std::vector<TuneProbe> probes;
            for (const Bytes bytes : options.sizes) probes.push_back({bytes, in_arena(algorithm)});
            FABRIC_TRY(const auto taken,
                       fabricshm::time_probes(wanted, tuning_for(world, algorithm), probes));
            // Cases are few: a scan of all of them is simpler than an index.
            for (Case& known : cases) {
                if (known.world != world || known.algorithm != algorithm) continue;
                const auto at = std::find(options.sizes.begin(), options.sizes.end(), known.bytes);
                known.seconds.push_back(
                    taken[static_cast<std::size_t>(at - options.sizes.begin())] * 1e-9);
            }
        }
    }
    return {};
}

// For people; every round is simulated with its own.
MachineLimits best_of(const std::vector<MachineLimits>& rounds) {
    MachineLimits best = rounds.front();
    for (const MachineLimits& round : rounds) {
        best.word = std::min(best.word, round.word);
        best.switch_cost = std::min(best.switch_cost, round.switch_cost);
        for (std::size_t i = 0; i < best.cache.points.size(); ++i) {
            auto& point = best.cache.points[i];
            const auto& other = round.cache.points[i];
            point.kept = std::min(point.kept, other.kept);
            point.handed = std::min(point.handed, other.handed);
            point.given = std::min(point.given, other.given);
            point.streamed = std::min(point.streamed, other.streamed);
        }
    }
    return best;
}

// By the limits of the same round: a virtual machine's cores change from one round to the next.
Seconds predict(const MachineLimits& limits, const Case& wanted) {
    AllreduceCall call;
    call.world = wanted.world;
    call.bytes = wanted.bytes;
    call.algorithm = wanted.algorithm;
    call.in_arena = in_arena(wanted.algorithm);
    const Topology topology = machine_topology(limits, wanted.world);
    return simulate_allreduce(topology, call, tuning_for(wanted.world, wanted.algorithm))
        .from_last();
}

void add_limits(Report& report, const MachineLimits& limits) {
    report.facts.emplace_back("cores", 1.0 * limits.cores);
    report.facts.emplace_back("word_s", limits.word);
    report.facts.emplace_back("switch_s", limits.switch_cost);
    for (const auto& point : limits.cache.points) {
        const auto name = [&](const char* what) {
            return std::string(what) + "_at_" +
                   std::to_string(static_cast<Bytes>(point.footprint) / fabricshm::kKiB) +
                   "KiB_per_s";
        };
        report.facts.emplace_back(name("kept"), 1 / point.kept);
        report.facts.emplace_back(name("handed"), 1 / point.handed);
        report.facts.emplace_back(name("given"), 1 / point.given);
        report.facts.emplace_back(name("streamed"), 1 / point.streamed);
    }
}

void add_errors(Report& report, const std::string& of, const std::vector<double>& errors) {
    if (errors.empty()) return;
    const double most = *std::max_element(errors.begin(), errors.end());
    report.facts.emplace_back("median_error_" + of + "_share", middle_round(errors));
    report.facts.emplace_back("max_error_" + of + "_share", most);
}

// Ratios first, then their middle_round: a round in which the machine was slow is slow in both.
void add_case(Report& report, const Case& done, const std::vector<MachineLimits>& rounds,
              std::map<std::string, std::vector<double>>& errors) {
    std::vector<double> simulated;
    std::vector<double> ratios;
    for (std::size_t round = 0; round < rounds.size(); ++round) {
        simulated.push_back(predict(rounds[round], done));
        ratios.push_back(simulated.back() / done.seconds[round]);
    }
    const double ratio = middle_round(ratios);
    // Against the smaller of the two: too fast and too slow by a factor count alike.
    const double error = std::max(ratio, 1 / ratio) - 1;
    const std::string name = fabricshm::name_of(done.algorithm);
    const auto [least, most] = std::minmax_element(done.seconds.begin(), done.seconds.end());
    report.rows.push_back({1.0 * done.world, name, static_cast<double>(done.bytes),
                           middle_round(done.seconds), middle_round(simulated), ratio, error,
                           *least, *most});
    // By algorithm, world and size, too: an error of one kind disappears in the mean of all.
    errors["all"].push_back(error);
    errors[name].push_back(error);
    errors[std::to_string(done.world) + "_devices"].push_back(error);
    errors["of_" + std::to_string(done.bytes) + "_bytes"].push_back(error);
}

}  // namespace

Result<Report> validate(const ValidateOptions& options) {
    std::vector<Case> cases;
    for (const int world : options.worlds) {
        for (const Algorithm algorithm : options.algorithms) {
            for (const Bytes bytes : options.sizes) cases.push_back({world, algorithm, bytes, {}});
        }
    }
    std::vector<MachineLimits> rounds;
    ProbeOptions probe;
    probe.most = max_probed(options);
    // Half as long as a case: the probe has several points.
    probe.sample = options.sample / 2;
    for (int round = 0; round < options.rounds; ++round) {
        FABRIC_TRY(const MachineLimits limits, probe_machine(probe));
        rounds.push_back(limits);
        FABRIC_TRY_VOID(measure_round(options, cases));
    }
    Report report;
    report.query = "validate";
    report.columns = {"devices",     "algorithm",   "size_bytes",
                      "measured_s",  "simulated_s", "simulated_over_measured",
                      "error_share", "least_s",     "most_s"};
    add_limits(report, best_of(rounds));
    std::map<std::string, std::vector<double>> errors;
    for (const Case& done : cases) add_case(report, done, rounds, errors);
    for (const auto& [of, values] : errors) add_errors(report, of, values);
    report.notes.push_back(
        "Each round is simulated with the limits of that round; medians over "
        "the rounds, of the ratio too. error: against the smaller of measured "
        "and simulated. The limits shown are the best of the rounds.");
    return report;
}

}  // namespace emu
