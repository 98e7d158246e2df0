#include "fabricd/telemetry/path_book.hpp"

#include <algorithm>
#include <cmath>

namespace fabricd {

namespace {

// A line over a network of switches takes some microseconds; a second was a process that slept.
constexpr double kLatencyMostNs = 1e9;

// The value that a share `q` of the sorted observations is not above.
double quantile(std::vector<float> values, double q) {
    if (values.empty()) return 0;
    const auto last = static_cast<double>(values.size() - 1);
    const auto at = static_cast<std::ptrdiff_t>(std::lround(q * last));
    std::nth_element(values.begin(), values.begin() + at, values.end());
    return values[static_cast<std::size_t>(at)];
}

// Into a ring that grows up to its size: a path that no rank reads takes nothing.
void put(std::vector<float>& ring, std::size_t at, double value) {
    if (ring.size() <= at) {
        ring.push_back(static_cast<float>(value));
    } else {
        ring[at] = static_cast<float>(value);
    }
}

}  // namespace

void PathBook::observe(Path& path, const Counters& now) {
    const Counters before = path.last;
    // Also when this sample counts for nothing: the next one is compared with what is there now.
    path.last = now;
    const bool rose = now.reads > before.reads && now.bytes > before.bytes && now.ns > before.ns &&
                      now.latency_ns >= before.latency_ns;
    // The first sample finds what was counted since the page was made: an observation like any
    // other.
    if (!rose) return;
    const auto reads = static_cast<double>(now.reads - before.reads);
    const double seconds = static_cast<double>(now.ns - before.ns) * 1e-9;
    const double latency = static_cast<double>(now.latency_ns - before.latency_ns) / reads;
    if (latency > kLatencyMostNs) return;
    put(path.rates, path.next, static_cast<double>(now.bytes - before.bytes) / seconds);
    put(path.latencies, path.next, latency);
    path.next = (path.next + 1) % kObservations;
}

void PathBook::look(const SessionSample& session) {
    const auto& image = session.image;
    const int peers = fabricshm::peers_of(image);
    if (!session.member || peers == 0) return;
    Reader& reader = readers_[session.session_id];
    const bool same = reader.page_number == session.page_number &&
                      reader.group_id == image.group_id && reader.rank == image.rank;
    if (!same) {
        // The peers of another group are other processes, whatever their ranks.
        reader = Reader{session.page_number, image.group_id, image.rank, {}};
        reader.to.resize(static_cast<std::size_t>(peers));
    }
    // The rows may be those of a smaller group still: they are read less often than the head.
    const std::size_t rows = std::min(reader.to.size(), image.peers.size());
    for (std::size_t peer = 0; peer < rows; ++peer) {
        const fabricshm::PeerCounters& now = image.peers[peer];
        observe(reader.to[peer], {now.reads, now.read_bytes, now.read_ns, now.latency_ns});
    }
}

void PathBook::keep(const std::vector<SessionSample>& sessions) {
    const auto is_there = [&](std::uint64_t id) {
        return std::ranges::binary_search(sessions, id, {}, &SessionSample::session_id);
    };
    // One search for each reader and no copy of the ids: this runs with each sample of paths.
    std::erase_if(readers_, [&](const auto& entry) { return !is_there(entry.first); });
}

std::vector<PathSample> PathBook::paths() const {
    std::vector<PathSample> all;
    for (const auto& [session, reader] : readers_) {
        for (std::size_t peer = 0; peer < reader.to.size(); ++peer) {
            const Path& path = reader.to[peer];
            if (path.rates.empty()) continue;
            // Slow ones are at the low end of rates and at the high end of latencies.
            all.push_back({reader.group_id, reader.rank, static_cast<int>(peer), path.last.reads,
                           quantile(path.rates, 0.5), quantile(path.rates, 0.01),
                           quantile(path.latencies, 0.5), quantile(path.latencies, 0.99)});
        }
    }
    std::ranges::sort(all, {}, [](const PathSample& path) {
        return std::tuple(path.group_id, path.from, path.to);
    });
    return all;
}

}  // namespace fabricd
