#include "fabricd/data/plan/prefetcher.hpp"

#include <algorithm>

namespace fabricd {

namespace {

constexpr double kAnswers = 2;
// Of the cache: what passes takes the place of what could be kept.
constexpr double kSlowShare = 0.02;
constexpr double kMostShare = 0.5;
constexpr std::uint32_t kNowhere = ~0U;

}  // namespace

Bytes bytes_ahead(const PrefetchRates& rates, Bytes sample_bytes, Bytes cache) noexcept {
    const auto sample = static_cast<double>(std::max<Bytes>(sample_bytes, 1));
    const double reads = rates.samples_per_s * sample;
    const bool is_slow = rates.source_bytes_per_s > 0 && rates.source_bytes_per_s < reads;
    // A slow source gives no more meanwhile than it can.
    const double rate = is_slow ? rates.source_bytes_per_s : reads;
    double wanted = rate * rates.source_latency_s * kAnswers + sample;
    // But it keeps up where much of the order is kept, if it never rests while that is read.
    if (is_slow) wanted = std::max(wanted, kSlowShare * static_cast<double>(cache));
    const double most = std::max(sample, kMostShare * static_cast<double>(cache));
    return static_cast<Bytes>(std::clamp(wanted, sample, most));
}

Prefetcher::Prefetcher(std::vector<std::uint32_t> order) : order_(std::move(order)) {
    for (std::uint32_t at = 0; at < order_.size(); ++at) {
        const std::uint32_t sample = order_[at];
        if (sample >= places_.size()) places_.resize(sample + 1, kNowhere);
        places_[sample] = at;
    }
}

std::optional<std::uint32_t> Prefetcher::next(Bytes ahead,
                                              const std::function<Bytes(std::uint32_t)>& bytes_of,
                                              const std::function<bool(std::uint32_t)>& is_kept) {
    for (; cursor_ < order_.size(); ++cursor_) {
        const std::uint32_t sample = order_[cursor_];
        // What is drawn twice (DistributedSampler fills up) may still pass from the first time.
        const bool needs_none =
            read_early_.erase(sample) != 0 || is_kept(sample) || passing_.count(sample) != 0;
        if (needs_none) continue;
        const Bytes bytes = bytes_of(sample);
        if (!passing_.empty() && passing_bytes_ + bytes > ahead) return std::nullopt;
        ++cursor_;
        passing_.emplace(sample, bytes);
        passing_bytes_ += bytes;
        return sample;
    }
    return std::nullopt;
}

bool Prefetcher::stop_passing(std::uint32_t sample) {
    const auto found = passing_.find(sample);
    if (found == passing_.end()) return false;
    passing_bytes_ -= found->second;
    passing_.erase(found);
    return true;
}

bool Prefetcher::is_ahead(std::uint32_t sample) const {
    return sample < places_.size() && places_[sample] != kNowhere && places_[sample] >= cursor_;
}

void Prefetcher::finish(std::uint32_t sample) {
    if (!stop_passing(sample) && is_ahead(sample)) read_early_.insert(sample);
}

}  // namespace fabricd
