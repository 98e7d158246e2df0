// What bandwidth has the pool to have?

#include <algorithm>
#include <cmath>
#include <limits>

#include "emu/sim/collective_run.hpp"
#include "emu/sim/queries.hpp"
#include "libfabricshm/collective/tuning.hpp"

namespace emu {

using fabricshm::AllreduceCall;
using fabricshm::Bytes;

namespace {

// Between these rates it is sought. Above, something else limits.
constexpr Rate kMin = 1e6;
constexpr Rate kMax = 1e16;
constexpr int kHalvings = 60;

// All buckets of a step, one after the other: each its own operation, as DDP does.
// Without overlap between buckets: a job's buckets follow each other on one group, whose operations
// run in order.
Seconds communication(const BandwidthQuery& query, int devices, Rate pool) {
    TopologySpec spec = query.spec;
    spec.shape = "star";
    spec.devices = devices;
    // One memory with the rate that is sought, so that the answer is a property of the pool and not
    // of how buffers are spread over several.
    spec.placement = Placement::kInterleaved;
    spec.pools = 1;
    spec.link.media = pool;
    const auto topology = make_topology(spec);
    if (!topology.ok()) return std::numeric_limits<Seconds>::infinity();
    const double bytes = query.parameters * query.bytes_each;
    const double buckets = std::ceil(bytes / static_cast<double>(query.bucket));
    AllreduceCall call;
    call.world = devices;
    // Whole cache lines, as the collectives cut their parts.
    call.bytes = static_cast<Bytes>(bytes / buckets) / 64 * 64;
    const auto tuning = fabricshm::default_tuning(devices, devices, 32 * fabricshm::kMiB);
    return buckets * simulate_allreduce(*topology, call, tuning).from_last();
}

// What the backward pass does not hide. It hides at most `hidden_share` of a step: the first
// gradients are there late, and the last bucket has nothing left to hide behind.
Seconds exposed(const BandwidthQuery& query, Seconds communication) {
    return std::max(communication - query.hidden_share * query.step, 0.0);
}

// Over the longer step, so that 50 % means that half of all the time is waiting.
double exposed_share(const BandwidthQuery& query, Seconds communication) {
    const Seconds more = exposed(query, communication);
    return more / (query.step + more);
}

// The least rate that reaches the target; NaN when none does.
Rate sought_rate(const BandwidthQuery& query, int devices) {
    const auto reaches = [&](Rate pool) {
        return exposed_share(query, communication(query, devices, pool)) <= query.target_share;
    };
    // The other limits (the devices' own links, latencies) are part of the communication: where
    // they alone miss the target, no pool helps.
    if (!reaches(kMax)) return std::numeric_limits<double>::quiet_NaN();
    Rate low = kMin;
    Rate high = kMax;
    // Halving on a logarithmic scale, to a thousandth.
    for (int i = 0; i < kHalvings && high / low > 1.001; ++i) {
        const Rate middle = std::sqrt(low * high);
        (reaches(middle) ? high : low) = middle;
    }
    return high;
}

}  // namespace

const std::vector<ModelPreset>& model_presets() {
    // Three times the forward pass, since the backward pass costs twice as much as that: 4.1 G
    // multiply-adds an image; 2 operations per parameter and token.
    static const std::vector<ModelPreset> presets = {
        {"resnet50", 25'557'032, 3 * 2 * 4.1e9, "an image of 224 x 224"},
        {"gpt2", 124'439'808, 6 * 124'439'808.0 * 1024, "1024 tokens"},
        {"gpt2-xl", 1'557'611'200, 6 * 1'557'611'200.0 * 1024, "1024 tokens"},
    };
    return presets;
}

Report answer_bandwidth(const BandwidthQuery& query) {
    Report report;
    report.query = "bandwidth";
    report.facts = {{"model", query.model},
                    {"parameters", query.parameters},
                    {"gradient_bytes", query.parameters * query.bytes_each},
                    {"step_s", query.step},
                    {"hidden_share", query.hidden_share},
                    {"target_share", query.target_share},
                    {"link", std::string(query.spec.link.name)}};
    report.columns = {"devices",          "pool_per_s",    "per_device_per_s",
                      "communication_s",  "exposed_share", "exposed_without_pool_limit_share",
                      "lower_bound_per_s"};
    const double bytes = query.parameters * query.bytes_each;
    // The time that the target leaves: what is hidden, and as much more as makes `target_share` of
    // the longer step.
    const Seconds allowed = query.step * query.hidden_share +
                            query.step * query.target_share / (1 - query.target_share);
    for (const int devices : query.devices) {
        const Rate rate = sought_rate(query, devices);
        const double at_best = exposed_share(query, communication(query, devices, kMax));
        const bool found = std::isfinite(rate);
        const Seconds taken = communication(query, devices, found ? rate : kMax);
        report.rows.push_back({1.0 * devices, rate, rate / devices, taken,
                               exposed_share(query, taken), at_best,
                               // In every allreduce a rank writes its gradients and reads the
                               // result, at the least.
                               2 * bytes * devices / allowed});
    }
    report.notes.push_back(
        "pool: what the pool has to read and write per second, all devices together; - where the "
        "devices' own links miss the target with any pool (exposed_without_pool_limit). "
        "lower_bound: every rank reads and writes the gradients once, without barriers");
    return report;
}

}  // namespace emu
