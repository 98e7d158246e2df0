#include "emu/memory/figures.hpp"

#include <algorithm>
#include <cmath>

namespace emu {

namespace {

// 0 on either side is "no limit" or "not known", which rules nothing out.
bool wide_enough(double own, double rated) {
    return rated == 0 || own == 0 || own >= rated;
}

bool short_enough(double own, double rated) {
    return rated == 0 || own <= rated;
}

}  // namespace

Figures rated_figures(const fabricshm::LinkImage& links, int node) {
    const fabricshm::LinkRoute& route = links.routes[node];
    Figures figures;
    figures.read_latency_ns = route.read_latency_ns;
    figures.write_latency_ns = route.write_latency_ns;
    double read = 0;
    double write = 0;
    for (std::uint32_t i = 0; i < route.hop_count; ++i) {
        const auto& channel = links.channels[route.hops[i].channel];
        const double share = route.hops[i].permille / 1000.0;
        // The slowest stretch is the limit of all. A stretch that takes only a share of the bytes,
        // since the pool is interleaved, is passed by so many fewer.
        read = std::max(read, channel.read_ns_per_byte * share);
        write = std::max(write, channel.write_ns_per_byte * share);
    }
    figures.read_bandwidth = read == 0 ? 0 : 1e9 / read;
    figures.write_bandwidth = write == 0 ? 0 : 1e9 / write;
    // The image holds what ranks wait for, so slow motion is in it.
    return slowed(figures, 1.0 / links.slow_motion);
}

Figures slowed(const Figures& figures, double slow_motion) {
    return {figures.read_latency_ns * slow_motion, figures.write_latency_ns * slow_motion,
            figures.read_bandwidth / slow_motion, figures.write_bandwidth / slow_motion};
}

double error_percent(double measured, double rated) {
    // Signed: above 0 is too slow in latency and too fast in bandwidth.
    return rated == 0 ? 0 : 100.0 * (measured - rated) / rated;
}

double worst_error_percent(const Figures& measured, const Figures& rated) {
    return std::max({std::abs(error_percent(measured.read_latency_ns, rated.read_latency_ns)),
                     std::abs(error_percent(measured.write_latency_ns, rated.write_latency_ns)),
                     std::abs(error_percent(measured.read_bandwidth, rated.read_bandwidth)),
                     std::abs(error_percent(measured.write_bandwidth, rated.write_bandwidth))});
}

Reach reach_of(const Figures& own, const Figures& rated) {
    return {short_enough(own.read_latency_ns, rated.read_latency_ns),
            short_enough(own.write_latency_ns, rated.write_latency_ns),
            wide_enough(own.read_bandwidth, rated.read_bandwidth),
            wide_enough(own.write_bandwidth, rated.write_bandwidth)};
}

int slow_motion_for(const Figures& own, const Figures& rated) {
    int factor = 1;
    // Whole factors up to 1000, as emulate.slow_motion takes them; the last one even when it is not
    // enough.
    while (factor < 1000 && !reach_of(own, slowed(rated, factor)).all()) ++factor;
    return factor;
}

}  // namespace emu
