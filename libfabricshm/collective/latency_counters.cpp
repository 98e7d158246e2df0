#include "libfabricshm/collective/latency_counters.hpp"

namespace fabricshm {

void LatencyCounters::copy_to(LatencyImage& image) const noexcept {
    image = LatencyImage{};
    image.used = used_.load(std::memory_order_relaxed);
    for (int kind = 0; kind < kLatencyKinds; ++kind) {
        image.failures[kind] = failures_[kind].load(std::memory_order_relaxed);
    }
    for_each_bit(image.used, [&](int index) {
        LatencyRow& row = image.rows[index];
        for (int bucket = 0; bucket <= kLatencyEnds; ++bucket) {
            row.counts[bucket] = rows_[index].words[bucket].load(std::memory_order_relaxed);
        }
        row.sum_ns = rows_[index].words[kLatencyEnds + 1].load(std::memory_order_relaxed);
    });
}

}  // namespace fabricshm
