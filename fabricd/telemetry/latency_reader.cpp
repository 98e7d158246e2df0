#include "fabricd/telemetry/latency_reader.hpp"

#include <algorithm>
#include <utility>

#include "libfabricshm/shm/telemetry_page.hpp"

namespace fabricd {

using fabricshm::kLatencyEnds;
using fabricshm::kLatencyKinds;
using fabricshm::LatencyImage;
using fabricshm::LatencyRow;

namespace {

// So many operations of the buckets together cannot have taken more or less than this. The sum is
// written a moment before or after the counts, and by the session: it is held to its buckets.
std::uint64_t credible_sum(const LatencyRow& rise) {
    // An operation in the bucket without an end: an hour is more than any timeout.
    constexpr std::uint64_t kMaxNs = 3'600'000'000'000;
    unsigned __int128 low = 0;
    unsigned __int128 high = 0;
    for (int bucket = 0; bucket <= kLatencyEnds; ++bucket) {
        const auto count = static_cast<unsigned __int128>(rise.counts[bucket]);
        const auto end = static_cast<std::uint64_t>(fabricshm::latency_end_ns(bucket));
        low += bucket == 0 ? 0 : count * (end / 2);
        high += count * (bucket == kLatencyEnds ? kMaxNs : end);
    }
    const auto sum = static_cast<unsigned __int128>(rise.sum_ns);
    const auto kept = std::min(
        {std::max(sum, low), high, static_cast<unsigned __int128>(fabricshm::kBelievedCount)});
    return static_cast<std::uint64_t>(kept);
}

// Takes `count` of what is left of `budget`; false for more.
bool take_of(std::uint64_t& budget, std::uint64_t count) {
    if (count > budget) return false;
    budget -= count;
    return true;
}

// What a row has more than before. False: a count fell, or there are too many.
bool rise_of(const LatencyRow& now, const LatencyRow& before, std::uint64_t& budget,
             LatencyRow& rise) {
    for (int bucket = 0; bucket <= kLatencyEnds; ++bucket) {
        if (now.counts[bucket] < before.counts[bucket]) return false;
        rise.counts[bucket] = now.counts[bucket] - before.counts[bucket];
        if (!take_of(budget, rise.counts[bucket])) return false;
    }
    // Of a sum that fell the difference is huge, and held to the buckets like any other.
    rise.sum_ns = now.sum_ns - before.sum_ns;
    rise.sum_ns = credible_sum(rise);
    return true;
}

void add(const LatencyRow& rise, LatencyRow& sum) {
    using fabricshm::kBelievedCount;
    for (int bucket = 0; bucket <= kLatencyEnds; ++bucket) {
        sum.counts[bucket] = std::min(sum.counts[bucket] + rise.counts[bucket], kBelievedCount);
    }
    sum.sum_ns = std::min(sum.sum_ns + rise.sum_ns, kBelievedCount);
}

}  // namespace

void LatencyReader::read(const std::byte* page, std::int64_t now_ns, LatencySums& sums) {
    LatencyImage image;  // only as far as it is loaded
    if (fabricshm::read_telemetry_latencies(page, image, seen_) != fabricshm::PageRead::kFresh) {
        return;
    }
    // A session counts sixteen small operations at once: hence those on top.
    const auto passed_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(now_ns - read_ns_, 0));
    std::uint64_t budget =
        read_ns_ == 0
            ? kMaxAtFirst
            : std::min(passed_ns / 1000, kMaxAtFirst / 100) * (kMaxPerSecond / 1'000'000) + 1000;
    read_ns_ = now_ns;
    for (int kind = 0; kind < kLatencyKinds; ++kind) {
        const std::uint64_t before = std::exchange(failures_[kind], image.failures[kind]);
        if (before == failures_[kind]) continue;
        const bool is_credible =
            before < failures_[kind] && take_of(budget, failures_[kind] - before);
        if (is_credible) sums.image.failures[kind] += failures_[kind] - before;
        if (!is_credible) ++sums.left_out;
    }
    std::vector<LatencyRow> rows;
    std::size_t old = 0;
    fabricshm::for_each_bit(used_ | image.used, [&](int index) {
        const std::uint64_t bit = std::uint64_t{1} << index;
        const LatencyRow before = (used_ & bit) != 0 ? rows_[old++] : LatencyRow{};
        if ((image.used & bit) == 0) return;  // no honest session takes one away
        rows.push_back(image.rows[index]);
        LatencyRow rise;
        if (rise_of(rows.back(), before, budget, rise)) {
            sums.image.used |= bit;
            add(rise, sums.image.rows[index]);
        } else {
            ++sums.left_out;
        }
    });
    used_ = image.used;
    rows_ = std::move(rows);
}

}  // namespace fabricd
