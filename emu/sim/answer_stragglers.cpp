// What do stragglers do to an allreduce?

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "emu/sim/collective_run.hpp"
#include "emu/sim/queries.hpp"
#include "emu/sim/random.hpp"
#include "libfabricshm/collective/tuning.hpp"

namespace emu {

using fabricshm::Algorithm;
using fabricshm::AllreduceCall;
using fabricshm::Trigger;
using fabricshm::Tuning;

namespace {

// Ways to run the same allreduce that differ in which rank waits for which: with claims, ranks that
// are done take pieces of those that are not.
struct Variant {
    const char* name;
    Algorithm algorithm;
    Trigger trigger;
    bool claims;
};
constexpr Variant kVariants[] = {
    {"direct", Algorithm::kDirect, Trigger::kAsync, false},
    {"direct, claims", Algorithm::kDirect, Trigger::kAsync, true},
    {"direct, sync", Algorithm::kDirect, Trigger::kSync, false},
    {"ring", Algorithm::kRing, Trigger::kAsync, false},
    {"ring, sync", Algorithm::kRing, Trigger::kSync, false},
};

// One kind of trouble. `slow_down` changes the machine, `arrivals` when its ranks call; `random`
// ones are run several times.
struct Scenario {
    std::string name;
    bool random;
    std::function<void(Topology&)> slow_down;
    std::function<std::vector<Seconds>(std::mt19937_64&, int)> arrivals;
};

std::vector<Scenario> scenarios(const StragglerQuery& query) {
    const auto nothing = [](Topology&) {};
    const auto together = [](std::mt19937_64&, int world) {
        return std::vector<Seconds>(static_cast<std::size_t>(world), 0.0);
    };
    // The middle one and not the first or last: rank 0 gives commands in sync mode, and ends of a
    // chain are special.
    const auto device = [](Topology& topology) -> Node& {
        const auto all = topology.devices();
        return topology.nodes[static_cast<std::size_t>(all[all.size() / 2])];
    };
    const double slow = query.slow;
    const Seconds late = query.late;
    const auto each = [late](auto draw) {
        return [late, draw](std::mt19937_64& random, int world) {
            std::vector<Seconds> arrivals;
            for (int rank = 0; rank < world; ++rank) arrivals.push_back(late * draw(random));
            return arrivals;
        };
    };
    return {
        {"nobody", false, nothing, together},
        {"slow engine", false,
         [=](Topology& topology) {
             device(topology).read /= slow;
             device(topology).write /= slow;
         },
         together},
        {"slow link", false,
         [=](Topology& topology) {
             device(topology).up /= slow;
             device(topology).down /= slow;
         },
         together},
        {"one late", false, nothing,
         [=](std::mt19937_64&, int world) {
             std::vector<Seconds> arrivals(static_cast<std::size_t>(world), 0.0);
             arrivals[arrivals.size() / 2] = late;
             return arrivals;
         }},
        {"all late, uniform", true, nothing,
         each([](std::mt19937_64& random) { return 2 * uniform(random); })},
        {"all late, exponential", true, nothing,
         // Both have the same mean, so that they differ by their tails alone.
         each([](std::mt19937_64& random) { return -std::log1p(-uniform(random)); })},
    };
}

// The nearest of the values: no interpolation, since a p99 of twenty runs is the slowest one.
double quantile(std::vector<double> values, double part) {
    std::sort(values.begin(), values.end());
    const auto last = static_cast<double>(values.size() - 1);
    return values[static_cast<std::size_t>(part * last + 0.5)];
}

std::vector<Cell> row_of(const StragglerQuery& query, const Scenario& scenario,
                         const Variant& variant, double& undisturbed) {
    Topology topology = query.topology;
    scenario.slow_down(topology);
    AllreduceCall call;
    call.world = static_cast<int>(topology.devices().size());
    call.bytes = query.bytes;
    call.algorithm = variant.algorithm;
    call.trigger = variant.trigger;
    Tuning tuning = fabricshm::default_tuning(call.world, call.world, 32 * fabricshm::kMiB);
    // From 0 bytes on, or never: the table decides by size otherwise, and this query is about
    // claims.
    tuning.claim_from = variant.claims ? 0 : ~fabricshm::Bytes{0};
    // The same seed for every variant: all have the same lateness.
    std::mt19937_64 random(query.seed);
    std::vector<double> from_first;
    std::vector<double> from_last;
    for (int run = 0; run < (scenario.random ? query.runs : 1); ++run) {
        const auto arrivals = scenario.arrivals(random, call.world);
        const RunResult result = simulate_allreduce(topology, call, tuning, arrivals);
        from_first.push_back(result.from_first());
        from_last.push_back(result.from_last());
    }
    const double median = quantile(from_last, 0.5);
    // "nobody" comes first in every list, so that all others have something to be compared with.
    if (scenario.name == "nobody") undisturbed = median;
    return {scenario.name,
            std::string(variant.name),
            quantile(from_first, 0.5),
            quantile(from_first, 0.99),
            median,
            median / undisturbed};
}

}  // namespace

Report answer_stragglers(const StragglerQuery& query) {
    Report report;
    report.query = "stragglers";
    report.facts = {{"topology", query.topology.name},
                    {"devices", 1.0 * static_cast<double>(query.topology.devices().size())},
                    {"size_bytes", static_cast<double>(query.bytes)},
                    {"slow_times", query.slow},
                    {"late_s", query.late},
                    {"seed", static_cast<double>(query.seed)}};
    report.columns = {"straggler",        "algorithm",   "from_first_s",
                      "from_first_p99_s", "from_last_s", "against_nobody"};
    // By variant: each is compared with itself when no rank is slow.
    double undisturbed[std::size(kVariants)] = {};
    for (const Scenario& scenario : scenarios(query)) {
        for (std::size_t i = 0; i < std::size(kVariants); ++i) {
            report.rows.push_back(row_of(query, scenario, kVariants[i], undisturbed[i]));
        }
    }
    report.notes.push_back(
        "from_first: from the first arrival to the last end; from_last: what "
        "is left once all are there; against_nobody: that, over the same "
        "without a straggler");
    return report;
}

}  // namespace emu
