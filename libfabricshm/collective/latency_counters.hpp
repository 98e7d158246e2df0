// LatencyCounters: where the meters of a session's groups count how long operations took.
// docs/telemetry.md.

#pragma once

#include <atomic>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "libfabricshm/collective/kinds.hpp"
#include "libfabricshm/shm/latency_rows.hpp"

namespace fabricshm {

static_assert(kKindCount <= kLatencyKinds && kKindCount == std::size(kLatencyKindNames));
static_assert(
    [] {
        for (const KindRow& row : kKindRows) {
            const char* name = kLatencyKindNames[static_cast<int>(row.kind)];
            if (is_message(row.kind) != (name == nullptr)) return false;
            if (name != nullptr && std::string_view(name) != row.name) return false;
        }
        return true;
    }(),
    "the metrics call a kind by another name");

/// Of one session. Any thread counts, any thread copies; a copy may lack what is counted meanwhile,
/// and have an operation in its bucket and not yet in the sum.
class LatencyCounters {
  public:
    /// An operation that went well and stands for `weight` like it. Two additions, some 10 ns.
    void count(Kind kind, std::uint64_t bytes, std::int64_t took_ns, std::int64_t weight) noexcept {
        // Relaxed throughout: each counter stands for itself, and a bit guards no word: a reader
        // that sees it too early finds zeros.
        const int index = latency_row(static_cast<int>(kind), bytes);
        Row& row = rows_[index];
        const std::int64_t took = took_ns > 0 ? took_ns : 0;
        row.words[latency_bucket(took)].fetch_add(static_cast<std::uint64_t>(weight),
                                                  std::memory_order_relaxed);
        row.words[kLatencyEnds + 1].fetch_add(static_cast<std::uint64_t>(took * weight),
                                              std::memory_order_relaxed);
        const std::uint64_t bit = std::uint64_t{1} << index;
        if ((used_.load(std::memory_order_relaxed) & bit) != 0) return;
        used_.fetch_or(bit, std::memory_order_relaxed);
    }

    void count_failure(Kind kind) noexcept {
        failures_[static_cast<int>(kind)].fetch_add(1, std::memory_order_relaxed);
    }

    /// Sets all of `image`; some 50 ns for each row that is used.
    void copy_to(LatencyImage& image) const noexcept;

  private:
    struct Row {
        std::atomic<std::uint64_t> words[kLatencyWords]{};
    };

    std::atomic<std::uint64_t> used_{0};
    std::atomic<std::uint64_t> failures_[kLatencyKinds]{};
    Row rows_[kLatencyRows];
};

}  // namespace fabricshm
