// Prefetcher: which sample of an epoch to fetch next, so that each is there before it is read.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;

/// What was measured of the source and of the job.
struct PrefetchRates {
    double source_latency_s = 0;    // from asking to the first byte
    double source_bytes_per_s = 0;  // 0: not known yet
    double samples_per_s = 0;       // that the job reads when it does not wait
};

/// How many bytes of a cache are for what is fetched ahead of its use: what the job reads, or the
/// source gives, while the source answers twice, for an answer may take longer than the last one,
/// and one sample more that is being transferred. For a source that is slower than the job 2 % of
/// the cache at least. Half of the cache at most, but one sample.
Bytes bytes_ahead(const PrefetchRates& rates, Bytes sample_bytes, Bytes cache) noexcept;

/// Walks along one epoch's order. One thread at a time; each sample is looked at once.
class Prefetcher {
  public:
    explicit Prefetcher(std::vector<std::uint32_t> order);

    /// The sample to ask for now: the next in order that is not kept. It passes through the memory
    /// from now on until it was read or is kept. None: `ahead` bytes are passing already (one
    /// sample may be larger), or the epoch is at its end.
    std::optional<std::uint32_t> next(Bytes ahead,
                                      const std::function<Bytes(std::uint32_t)>& bytes_of,
                                      const std::function<bool(std::uint32_t)>& is_kept);

    /// It stays: others may pass in its stead.
    void keep(std::uint32_t sample) { stop_passing(sample); }
    /// It was read, in whatever order; one that was not asked for will not be.
    void finish(std::uint32_t sample);

    Bytes passing() const noexcept { return passing_bytes_; }
    bool is_at_end() const noexcept { return cursor_ == order_.size(); }

  private:
    bool stop_passing(std::uint32_t sample);
    bool is_ahead(std::uint32_t sample) const;

    std::vector<std::uint32_t> order_;
    std::vector<std::uint32_t> places_;                 // of each sample in `order_`: the last
    std::size_t cursor_ = 0;                            // the first place that was not looked at
    std::unordered_map<std::uint32_t, Bytes> passing_;  // asked for; neither read nor kept
    std::unordered_set<std::uint32_t> read_early_;      // before the cursor came to them
    Bytes passing_bytes_ = 0;
};

}  // namespace fabricd
