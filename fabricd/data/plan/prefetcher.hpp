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
    double source_latency_s = 0;  // from asking to the last byte, behind all that was asked before
    double source_bytes_per_s = 0;  // 0: not known yet
    double samples_per_s = 0;       // that the job reads when it does not wait
    double least_latency_s = 0;     // with nothing before it
};

/// How many bytes to fetch ahead of their use: what the job reads, or the source gives, while the
/// source answers twice, for an answer may take longer than the last one, and one sample more that
/// is being transferred. For a source that is slower than the job 2 % of the cache at least. Half
/// of the cache at most, but one sample.
Bytes bytes_ahead(const PrefetchRates& rates, Bytes sample_bytes, Bytes cache) noexcept;

/// How many of these bytes the cache sets aside, since at an epoch's start nothing has been read
/// for which they could be exchanged: what the job reads, or the source gives, until the first
/// answer, and one sample more, but a 128th of the cache at least. It must not follow the latency
/// with all that was asked before: the more is asked ahead, the longer that is.
Bytes bytes_aside(const PrefetchRates& rates, Bytes sample_bytes, Bytes cache) noexcept;

/// Where what is fetched ahead may lie.
struct PassingRoom {
    Bytes ahead = 0;     // of all that passes
    Bytes aside = 0;     // of what took no kept sample's place
    Bytes in_place = 0;  // of kept samples that the next one may take the place of
};

/// Walks along one epoch's order. One thread at a time; each sample is looked at once.
class Prefetcher {
  public:
    explicit Prefetcher(std::vector<std::uint32_t> order);

    /// The sample to ask for now: the next in order that is not kept. It passes through the memory
    /// from now on until it was read or is kept. None: there is no room (one sample may be larger
    /// than all), or the epoch is at its end.
    std::optional<std::uint32_t> next(const PassingRoom& room,
                                      const std::function<Bytes(std::uint32_t)>& bytes_of,
                                      const std::function<bool(std::uint32_t)>& is_kept);

    /// It stays: others may pass in its stead.
    void keep(std::uint32_t sample) { stop_passing(sample); }
    /// It passes, in a kept sample's place.
    void take_place(std::uint32_t sample);
    /// It was read, in whatever order; one that was not asked for will not be.
    void finish(std::uint32_t sample);

    Bytes passing() const noexcept { return passing_bytes_; }
    Bytes passing_aside() const noexcept { return passing_bytes_ - in_place_bytes_; }
    bool is_at_end() const noexcept { return cursor_ == order_.size(); }

  private:
    struct Passing {
        Bytes bytes = 0;
        bool is_in_place = false;
    };
    bool has_room(const PassingRoom& room, Bytes bytes) const noexcept;
    bool stop_passing(std::uint32_t sample);
    bool is_ahead(std::uint32_t sample) const;

    std::vector<std::uint32_t> order_;
    std::vector<std::uint32_t> places_;                   // of each sample in `order_`: the last
    std::size_t cursor_ = 0;                              // the first place that was not looked at
    std::unordered_map<std::uint32_t, Passing> passing_;  // asked for; neither read nor kept
    std::unordered_set<std::uint32_t> read_early_;        // before the cursor came to them
    Bytes passing_bytes_ = 0;
    Bytes in_place_bytes_ = 0;
};

}  // namespace fabricd
