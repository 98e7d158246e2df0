// What does the control loop make of stragglers and failures?

#include <algorithm>

#include "emu/sim/control_policy.hpp"
#include "emu/sim/queries.hpp"
#include "emu/sim/settling.hpp"

namespace emu {

namespace {

/// A change is only judged when the loop had the time to judge its own action.
constexpr double kJudgedWindows = 12;

// What the traces of one policy and size add up to. Means over traces, but the settling of all
// changes of all traces together.
struct Tally {
    std::vector<double> of_ideal, regrets, settling, reversals, actions;
    double changes = 0;
    double within_five = 0;
};

double mean(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double largest(const std::vector<double>& values) {
    return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// The lower one of an even number: a figure that one of the changes really had.
double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[(values.size() - 1) / 2];
}

Workload workload_of(const ControlQuery& query, Topology topology) {
    Workload workload = query.workload;
    const std::size_t devices = topology.devices().size();
    // Speeds in turn and not at random: a row of 8 devices and one of 1024 then have the same mix.
    for (std::size_t i = 0; i < devices; ++i) {
        workload.samples_per_s.push_back(1000 * query.speeds[i % query.speeds.size()]);
    }
    // A hundred milliseconds of computing in a step of equal devices of speed 1.
    workload.batch = 100.0 * static_cast<double>(devices);
    workload.topology = std::move(topology);
    return workload;
}

// Every policy is watched in the same way; only what it sees differs.
void run(const ControlQuery& query, const Workload& workload, const Trace& trace,
         const std::string& name, Tally& tally) {
    const double window_s = std::chrono::duration<double>(query.config.window).count();
    ControlLog log;
    const Policy chosen = name == "control"        ? control_policy(workload, query.config, &log)
                          : name == "proportional" ? proportional_policy()
                                                   : even_policy();
    // From outside: the policy sees a Snapshot and knows nothing of being watched.
    SettlingWatch watch(workload, trace, chosen);
    const auto result = run_training(workload, trace, watch.policy());
    // Of the same trace and the same noise: the difference is the policy's alone.
    const auto oracle = run_training(workload, trace, oracle_policy(workload, trace));
    tally.of_ideal.push_back(result.samples_per_s / oracle.samples_per_s);
    tally.regrets.push_back(regret(result, oracle));
    tally.actions.push_back(static_cast<double>(result.changes));
    for (const Settled& change : watch.changes(kJudgedWindows * window_s)) {
        const double windows = change.seconds / window_s;
        tally.changes += 1;
        // Not settled before the next change counts as failed, however good it looked.
        tally.within_five += change.is_settled && windows <= 5 ? 1 : 0;
        tally.settling.push_back(windows);
        tally.reversals.push_back(static_cast<double>(change.reversals));
    }
}

}  // namespace

Report answer_control(const ControlQuery& query) {
    Report report;
    report.query = "control";
    report.facts = {{"window_s", std::chrono::duration<double>(query.config.window).count()},
                    {"steps", static_cast<double>(query.trace.steps)},
                    {"traces", 1.0 * query.traces},
                    {"stragglers", 1.0 * query.trace.stragglers},
                    {"failures", 1.0 * query.trace.failures},
                    {"noise_share", query.trace.noise}};
    report.columns = {"devices",
                      "policy",
                      "of_oracle_share",
                      "worst_of_oracle_share",
                      "regret_share",
                      "changes",
                      "settled_in_5_share",
                      "settling_windows",
                      "worst_settling_windows",
                      "worst_reversals",
                      "actions"};
    for (const int devices : query.devices) {
        TopologySpec spec = query.spec;
        spec.devices = devices;
        auto topology = make_topology(spec);
        if (!topology.ok()) {
            report.notes.push_back("no such topology of " + std::to_string(devices) + " devices");
            continue;
        }
        const Workload workload = workload_of(query, std::move(*topology));
        // "even" is what a job gets without a control loop, "proportional" the first thing to try.
        for (const char* name : {"even", "proportional", "control"}) {
            Tally tally;
            for (int i = 0; i < query.traces; ++i) {
                TraceSpec trace = query.trace;
                trace.devices = devices;
                // Traces differ by their seed alone and are the same for every policy: row against
                // row is a paired comparison.
                trace.seed += static_cast<std::uint64_t>(i);
                run(query, workload, make_trace(trace), name, tally);
            }
            // The worst trace, too: a loop that is good on average and bad once in twenty jobs
            // would not be left switched on.
            const double worst = *std::min_element(tally.of_ideal.begin(), tally.of_ideal.end());
            report.rows.push_back({1.0 * devices, std::string(name), mean(tally.of_ideal), worst,
                                   mean(tally.regrets), tally.changes,
                                   tally.changes > 0 ? tally.within_five / tally.changes : 1.0,
                                   median(tally.settling), largest(tally.settling),
                                   largest(tally.reversals), mean(tally.actions)});
        }
    }
    report.notes.push_back(
        "of_oracle: samples/s against an oracle that knows the next step's speeds; settled: a step "
        "without noise would reach 90 % of the ideal, and does so until the next change; "
        "changes: those that had 12 windows until the next one; reversals: of the rank whose share "
        "turned round most often; actions: steps after which shares changed");
    return report;
}

}  // namespace emu
