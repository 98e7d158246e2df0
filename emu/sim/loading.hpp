// Loading: how a job reads a set of files through a cache, epoch by epoch, with the data cache's
// own rules, in simulated time.

#pragma once

#include <cstdint>
#include <vector>

#include "emu/sim/event_queue.hpp"
#include "emu/sim/report.hpp"
#include "libfabricshm/base/units.hpp"

namespace emu {

struct LoadingFigures {
    std::uint32_t samples = 10'000;
    fabricshm::Bytes sample_bytes = 110 * fabricshm::kKiB;
    double samples_per_s = 1000;  // that the job reads when it never waits
    double source = 0.5;          // the source's rate over the job's
    Seconds latency = 0.02;       // of the source, from asking to the first byte
    int workers = 8;  // without a plan, samples that the loader asks for ahead of their use
    int epochs = 8;
    std::uint64_t seed = 1;
};

/// What decides which samples stay.
enum class LoadingPolicy {
    kLru,       // the sample goes that was read longest ago
    kS3Fifo,    // as without a plan
    kFarthest,  // of all, the new one too, the one whose next use is last: no cache has more hits
    kKept,      // as with a plan, but only the loader fetches ahead
    kPlan,      // as with a plan
};
inline constexpr int kLoadingPolicies = 5;
const char* name_of(LoadingPolicy policy) noexcept;

/// Of the epochs after the first, in the mean.
struct LoadingResult {
    double hits = 0;  // share of the reads whose sample stayed from an earlier epoch
    Seconds epoch = 0;
    Seconds stall = 0;     // of an epoch, in which the job waited for data
    double most_held = 0;  // share of the set that was in memory at a time
};

/// `cache`: the share of the set that fits.
LoadingResult simulate_loading(const LoadingFigures& figures, LoadingPolicy policy, double cache);

/// What an epoch has to wait at least: for what does not fit to come from the source.
Seconds least_stall(const LoadingFigures& figures, double cache) noexcept;

struct LoadingQuery {
    LoadingFigures figures;
    std::vector<double> caches;
};
Report answer_loading(const LoadingQuery& query);

}  // namespace emu
