#include "fabricd/server/daemon_metrics.hpp"

#include <cstdint>

#include "fabricd/telemetry/sample_metrics.hpp"

namespace fabricd {

namespace {

void add_daemon(const Snapshot& snapshot, MetricsText& text) {
    text.family("fabricd_info", MetricType::kGauge, "1, with the version and the pool's kind.");
    text.sample({{"version", FABRIC_VERSION}, {"pool", snapshot.pool.backend}}, 1.0);
    text.family("fabricd_uptime_seconds", MetricType::kGauge, "Since the daemon started.");
    text.sample({}, static_cast<double>(snapshot.uptime_ms) * 1e-3);
    text.family("fabricd_pool_capacity_bytes", MetricType::kGauge, "The pool.");
    text.sample({}, static_cast<std::uint64_t>(snapshot.pool.capacity_bytes));
    text.family("fabricd_pool_used_bytes", MetricType::kGauge, "Of it: in arenas.");
    text.sample({}, static_cast<std::uint64_t>(snapshot.pool.used_bytes));
    text.family("fabricd_sessions", MetricType::kGauge, "Attached processes.");
    text.sample({}, snapshot.totals.sessions);
    text.family("fabricd_arenas", MetricType::kGauge, "Arenas, one per job.");
    text.sample({}, snapshot.totals.arenas);
    text.family("fabricd_regions", MetricType::kGauge, "Regions in all arenas.");
    text.sample({}, snapshot.totals.regions);
    text.family("fabricd_groups", MetricType::kGauge, "Groups of ranks.");
    text.sample({}, snapshot.totals.groups);
}

// Metrics by arena are as many as there are jobs; regions and tensors stay out, which may be a
// million.
void add_arenas(const Snapshot& snapshot, MetricsText& text) {
    if (snapshot.arenas.empty()) return;
    text.family("fabricd_arena_bytes", MetricType::kGauge, "Size of the arena.");
    for (const auto& arena : snapshot.arenas) {
        text.sample({{"arena", std::to_string(arena.id)}, {"name", arena.name}}, arena.bytes);
    }
    text.family("fabricd_arena_committed_bytes", MetricType::kGauge,
                "Of it: taken from the pool so far.");
    for (const auto& arena : snapshot.arenas) {
        text.sample({{"arena", std::to_string(arena.id)}, {"name", arena.name}},
                    arena.bytes_committed);
    }
    text.family("fabricd_arena_used_bytes", MetricType::kGauge, "Of it: in regions.");
    for (const auto& arena : snapshot.arenas) {
        text.sample({{"arena", std::to_string(arena.id)}, {"name", arena.name}}, arena.bytes_used);
    }
}

}  // namespace

std::string metrics_page(const Snapshot& snapshot, const Sample& sample) {
    MetricsText text;
    // For people that read the page; Prometheus takes any order.
    add_daemon(snapshot, text);
    add_arenas(snapshot, text);
    add_sample_metrics(sample, text);
    return text.text();
}

}  // namespace fabricd
