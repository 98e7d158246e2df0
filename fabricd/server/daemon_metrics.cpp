#include "fabricd/server/daemon_metrics.hpp"

#include <cstdint>

#include "fabricd/telemetry/sample_metrics.hpp"
#include "libfabricshm/base/version.hpp"

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

// What caches say of themselves, and what they have: one service publishes one, as a rule.
void add_caches(const Snapshot& snapshot, MetricsText& text) {
    text.family("fabricd_pool_waited_bytes_total", MetricType::kCounter,
                "Bytes that requests waited for while caches gave way.");
    text.sample({}, snapshot.demand.waited);
    text.family("fabricd_pool_waited_in_vain_bytes_total", MetricType::kCounter,
                "Of them: refused when the time was over.");
    text.sample({}, snapshot.demand.refused);
    if (snapshot.caches.empty()) return;
    using Figure = std::uint64_t (*)(const CacheView&);
    const auto add = [&](const char* name, MetricType type, const char* help, Figure figure) {
        text.family(name, type, help);
        for (const CacheView& cache : snapshot.caches) {
            text.sample({{"arena", std::to_string(cache.arena_id)}, {"name", cache.name}},
                        figure(cache));
        }
    };
    constexpr auto kGauge = MetricType::kGauge;
    constexpr auto kCounter = MetricType::kCounter;
    add("fabricd_cache_quota_bytes", kGauge, "What the cache may have of the pool.",
        [](const CacheView& cache) { return cache.quota_bytes; });
    add("fabricd_cache_target_bytes", kGauge, "What it is asked to keep to.",
        [](const CacheView& cache) { return cache.target_bytes; });
    add("fabricd_cache_floor_bytes", kGauge, "What it keeps whatever jobs need.",
        [](const CacheView& cache) { return cache.floor_bytes; });
    add("fabricd_cache_used_bytes", kGauge, "What is there, as the service says.",
        [](const CacheView& cache) { return cache.bytes_used; });
    add("fabricd_cache_readers", kGauge, "Processes that read it.",
        [](const CacheView& cache) { return cache.readers; });
    add("fabricd_cache_hits_total", kCounter, "Chunks that readers found there.",
        [](const CacheView& cache) { return cache.hits; });
    add("fabricd_cache_misses_total", kCounter, "Chunks that they waited for.",
        [](const CacheView& cache) { return cache.misses; });
    add("fabricd_cache_refetched_bytes_total", kCounter, "Fetched again after they had left.",
        [](const CacheView& cache) { return cache.bytes_refetched; });
    add("fabricd_cache_refetched_near_bytes_total", kCounter,
        "Of them: a quarter more memory would still have had them.",
        [](const CacheView& cache) { return cache.bytes_refetched_near; });
    text.family("fabricd_cache_stall_seconds_total", kCounter, "That its readers waited together.");
    for (const CacheView& cache : snapshot.caches) {
        text.sample({{"arena", std::to_string(cache.arena_id)}, {"name", cache.name}},
                    static_cast<double>(cache.stall_ns) * 1e-9);
    }
}

}  // namespace

std::string metrics_page(const Snapshot& snapshot, const Sample& sample) {
    MetricsText text;
    // For people that read the page; Prometheus takes any order.
    add_daemon(snapshot, text);
    add_arenas(snapshot, text);
    add_caches(snapshot, text);
    add_sample_metrics(sample, text);
    return text.text();
}

}  // namespace fabricd
