#include "fabricd/data/plan/prefetcher.hpp"

#include <algorithm>

namespace fabricd {

namespace {

constexpr double kAnswers = 2;
constexpr double kSlowShare = 0.02;
// Of the cache: what is set aside takes the place of what could be kept.
constexpr double kAsideShare = 1.0 / 128;
constexpr double kMaxShare = 0.5;
constexpr std::uint32_t kNowhere = ~0U;

bool is_slow(const PrefetchRates& rates, double sample) noexcept {
    return rates.source_bytes_per_s > 0 && rates.source_bytes_per_s < rates.samples_per_s * sample;
}

// A slow source gives no more meanwhile than it can.
double moved_per_s(const PrefetchRates& rates, double sample) noexcept {
    return is_slow(rates, sample) ? rates.source_bytes_per_s : rates.samples_per_s * sample;
}

}  // namespace

Bytes bytes_ahead(const PrefetchRates& rates, Bytes sample_bytes, Bytes cache) noexcept {
    const auto sample = static_cast<double>(std::max<Bytes>(sample_bytes, 1));
    double wanted = moved_per_s(rates, sample) * rates.source_latency_s * kAnswers + sample;
    // A slow source keeps up where much of the order is kept, if it never rests while that is read.
    if (is_slow(rates, sample)) wanted = std::max(wanted, kSlowShare * static_cast<double>(cache));
    const double most = std::max(sample, kMaxShare * static_cast<double>(cache));
    return static_cast<Bytes>(std::clamp(wanted, sample, most));
}

Bytes bytes_aside(const PrefetchRates& rates, Bytes sample_bytes, Bytes cache) noexcept {
    const auto sample = static_cast<double>(std::max<Bytes>(sample_bytes, 1));
    const double answer = moved_per_s(rates, sample) * rates.least_latency_s + sample;
    const double least = static_cast<double>(cache) * kAsideShare;
    return std::min(bytes_ahead(rates, sample_bytes, cache),
                    static_cast<Bytes>(std::max(answer, least)));
}

Prefetcher::Prefetcher(std::vector<std::uint32_t> order) : order_(std::move(order)) {
    for (std::uint32_t at = 0; at < order_.size(); ++at) {
        const std::uint32_t sample = order_[at];
        if (sample >= places_.size()) places_.resize(sample + 1, kNowhere);
        places_[sample] = at;
    }
}

bool Prefetcher::has_room(const PassingRoom& room, Bytes bytes) const noexcept {
    if (passing_.empty()) return true;
    const bool is_aside = passing_aside() + bytes <= room.aside;
    return passing_bytes_ + bytes <= room.ahead && (is_aside || bytes <= room.in_place);
}

std::optional<std::uint32_t> Prefetcher::next(const PassingRoom& room,
                                              const std::function<Bytes(std::uint32_t)>& bytes_of,
                                              const std::function<bool(std::uint32_t)>& is_kept) {
    for (; cursor_ < order_.size(); ++cursor_) {
        const std::uint32_t sample = order_[cursor_];
        // What is drawn twice (DistributedSampler fills up) may still pass from the first time.
        const bool needs_none =
            read_early_.erase(sample) != 0 || is_kept(sample) || passing_.count(sample) != 0;
        if (needs_none) continue;
        const Bytes bytes = bytes_of(sample);
        if (!has_room(room, bytes)) return std::nullopt;
        ++cursor_;
        passing_[sample] = {bytes, false};
        passing_bytes_ += bytes;
        return sample;
    }
    return std::nullopt;
}

void Prefetcher::take_place(std::uint32_t sample) {
    const auto found = passing_.find(sample);
    if (found == passing_.end() || found->second.is_in_place) return;
    found->second.is_in_place = true;
    in_place_bytes_ += found->second.bytes;
}

bool Prefetcher::stop_passing(std::uint32_t sample) {
    const auto found = passing_.find(sample);
    if (found == passing_.end()) return false;
    const Passing& one = found->second;
    passing_bytes_ -= one.bytes;
    if (one.is_in_place) in_place_bytes_ -= one.bytes;
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
