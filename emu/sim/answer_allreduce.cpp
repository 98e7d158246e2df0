// How long does an allreduce take, and from where on does the ring beat direct?

#include <algorithm>
#include <cmath>
#include <limits>

#include "emu/sim/collective_run.hpp"
#include "emu/sim/queries.hpp"
#include "emu/sim/sim_units.hpp"
#include "libfabricshm/collective/tuning.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace emu {

using fabricshm::Algorithm;
using fabricshm::AllreduceCall;
using fabricshm::Bytes;
using fabricshm::Tuning;

namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

// The defaults for ranks with a processor each; the machine of the simulator has no say in it.
// All queries of the simulator use the library's own defaults: a tuning file of this machine
// would say nothing about the machine that is simulated.
Tuning tuning_for(int world) {
    return fabricshm::default_tuning(world, world, 32 * fabricshm::kMiB);
}

// Said and not refused: the query is how the algorithms scale, and the limit is one of today's
// shared memory layout.
void warn_of_size(Report& report, int world) {
    if (world <= fabricshm::proto::kWorldMax) return;
    report.notes.push_back("note: a group of today has at most " +
                           std::to_string(fabricshm::proto::kWorldMax) +
                           " ranks; beyond that these are the same algorithms on paper");
}

// For the crossover, where only the time counts; all ranks come at once.
double time_of(const Topology& topology, Bytes bytes, Algorithm algorithm) {
    AllreduceCall call;
    call.world = static_cast<int>(topology.devices().size());
    call.bytes = bytes;
    call.algorithm = algorithm;
    return simulate_allreduce(topology, call, tuning_for(call.world)).from_last();
}

}  // namespace

Report answer_allreduce(const AllreduceQuery& query) {
    const int world = static_cast<int>(query.topology.devices().size());
    const Tuning tuning = tuning_for(world);
    Report report;
    report.query = "allreduce";
    report.facts = {{"topology", query.topology.name}, {"devices", 1.0 * world}};
    report.columns = {"size_bytes", "algorithm", "time_s", "each_per_s", "pool_per_s", "events"};
    for (const Bytes bytes : query.sizes) {
        for (const Algorithm algorithm : query.algorithms) {
            AllreduceCall call;
            call.world = world;
            call.bytes = bytes;
            call.algorithm = algorithm;
            call.trigger = query.trigger;
            call.in_arena = query.in_arena;
            const RunResult run = simulate_allreduce(query.topology, call, tuning);
            const double moved = run.bytes_read + run.bytes_written;
            // Of operations that were run in part only, the bytes are not all counted.
            // A ring in lockstep counts all of its bytes, see run_lockstep(); a plan in pieces only
            // those of the pieces that were run.
            const bool all_counted = !run.aggregated || algorithm == Algorithm::kRing;
            report.rows.push_back({1.0 * static_cast<double>(bytes),
                                   std::string(fabricshm::name_of(algorithm)), run.from_last(),
                                   static_cast<double>(bytes) / run.from_last(),
                                   all_counted ? moved / run.from_last() : kNothing,
                                   static_cast<double>(run.events)});
        }
    }
    report.notes.push_back(
        "time: from the last arrival to the last end; each: bytes of the vector per time; pool: "
        "all bytes read and written per time");
    warn_of_size(report, world);
    return report;
}

Report answer_crossover(const CrossoverQuery& query) {
    Report report;
    report.query = "crossover";
    const char* placements[] = {"interleaved", "home", "device"};
    report.facts = {{"shape", query.spec.shape},
                    {"link", std::string(query.spec.link.name)},
                    {"placement", std::string(placements[static_cast<int>(query.spec.placement)])},
                    {"oversubscription", query.spec.oversubscription}};
    report.columns = {
        "devices", "ring_wins_from_bytes", "ring_wins_to_bytes", "largest_bytes", "direct_s",
        "ring_s",  "ring_over_direct"};
    int most = 0;
    for (const int devices : query.devices) {
        TopologySpec spec = query.spec;
        spec.devices = devices;
        // A chain that is too long, for one: its row is left out, and the other sizes still answer.
        const auto topology = make_topology(spec);
        if (!topology.ok()) continue;
        most = std::max(most, devices);
        double from = kNothing;
        double to = kNothing;
        double direct = 0;
        double ring = 0;
        // Powers of two: what is sought is an order of magnitude.
        for (Bytes bytes = query.least; bytes <= query.most; bytes *= 2) {
            direct = time_of(*topology, bytes, Algorithm::kDirect);
            ring = time_of(*topology, bytes, Algorithm::kRing);
            // From the first size at which the ring wins to the last; in between it may lose.
            if (ring < direct && std::isnan(from)) from = static_cast<double>(bytes);
            if (ring < direct) to = static_cast<double>(bytes);
        }
        // The times of the last size in the loop, the largest, where both are bound by bandwidth.
        report.rows.push_back({1.0 * devices, from, to, static_cast<double>(query.most), direct,
                               ring, ring / direct});
    }
    report.notes.push_back(
        "ring_wins: the powers of two between which the ring is faster; - for "
        "never. Times are those of the largest size");
    warn_of_size(report, most);
    return report;
}

}  // namespace emu
