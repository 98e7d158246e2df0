// What bandwidth has the pool to have?

#include <algorithm>
#include <cmath>
#include <limits>

#include "emu/sim/collective_run.hpp"
#include "emu/sim/questions.hpp"
#include "libfabricshm/collective/tuning.hpp"

namespace emu {

using fabricshm::AllreduceCall;
using fabricshm::Bytes;

namespace {

// Between these rates it is sought. Above, something else limits.
constexpr Rate kLeast = 1e6;
constexpr Rate kMost = 1e16;
constexpr int kHalvings = 60;

// All buckets of a step, one after the other: each its own operation, as DDP does.
// Without overlap between buckets: a job's buckets follow each other on one group, whose operations
// run in order.
Seconds communication(const BandwidthQuestion& question, int devices, Rate pool) {
    TopologyWish wish = question.wish;
    wish.shape = "star";
    wish.devices = devices;
    // One memory with the rate that is sought, so that the answer is a property of the pool and not
    // of how buffers are spread over several.
    wish.placement = Placement::kInterleaved;
    wish.pools = 1;
    wish.link.media = pool;
    const auto topology = make_topology(wish);
    if (!topology.ok()) return std::numeric_limits<Seconds>::infinity();
    const double bytes = question.parameters * question.bytes_each;
    const double buckets = std::ceil(bytes / static_cast<double>(question.bucket));
    AllreduceCall call;
    call.world = devices;
    // Whole cache lines, as the collectives cut their parts.
    call.bytes = static_cast<Bytes>(bytes / buckets) / 64 * 64;
    const auto tuning = fabricshm::default_tuning(devices, devices, 32 * fabricshm::kMiB);
    return buckets * simulate_allreduce(*topology, call, tuning).from_last();
}

// What the backward pass does not hide. At most `hidden_share` of a step can run beside it: the
// first gradients are there late, and the last bucket has nothing left to hide behind.
Seconds exposed(const BandwidthQuestion& question, Seconds communication) {
    return std::max(communication - question.hidden_share * question.step, 0.0);
}

// Over the longer step, so that 50 % means that half of all the time is waiting.
double exposed_share(const BandwidthQuestion& question, Seconds communication) {
    const Seconds more = exposed(question, communication);
    return more / (question.step + more);
}

// The least rate that reaches the target; NaN when none does.
Rate sought_rate(const BandwidthQuestion& question, int devices) {
    const auto reaches = [&](Rate pool) {
        return exposed_share(question, communication(question, devices, pool)) <=
               question.target_share;
    };
    // The other limits (the devices' own links, latencies) are part of the communication: where
    // they alone miss the target, no pool helps.
    if (!reaches(kMost)) return std::numeric_limits<double>::quiet_NaN();
    Rate low = kLeast;
    Rate high = kMost;
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

Report answer_bandwidth(const BandwidthQuestion& question) {
    Report report;
    report.question = "bandwidth";
    report.facts = {{"model", question.model},
                    {"parameters", question.parameters},
                    {"gradient_bytes", question.parameters * question.bytes_each},
                    {"step_s", question.step},
                    {"hidden_share", question.hidden_share},
                    {"target_share", question.target_share},
                    {"link", std::string(question.wish.link.name)}};
    report.columns = {"devices",          "pool_per_s",    "per_device_per_s",
                      "communication_s",  "exposed_share", "exposed_without_pool_limit_share",
                      "lower_bound_per_s"};
    const double bytes = question.parameters * question.bytes_each;
    // The time that the target leaves: what is hidden, and as much more as makes `target_share` of
    // the longer step.
    const Seconds allowed = question.step * question.hidden_share +
                            question.step * question.target_share / (1 - question.target_share);
    for (const int devices : question.devices) {
        const Rate rate = sought_rate(question, devices);
        const double at_best = exposed_share(question, communication(question, devices, kMost));
        const bool found = std::isfinite(rate);
        const Seconds taken = communication(question, devices, found ? rate : kMost);
        report.rows.push_back({1.0 * devices, rate, rate / devices, taken,
                               exposed_share(question, taken), at_best,
                               // In every allreduce a rank writes its gradients and reads the
                               // result, at the least.
                               2 * bytes * devices / allowed});
    }
    report.notes.push_back(
        "pool: what the pool has to read and write per second, all devices together; - where the "
        "devices' own links miss the target with any pool (exposed_without_pool_limit). "
        "lower_bound: every rank reads and writes the gradients once, without meetings");
    return report;
}

}  // namespace emu
