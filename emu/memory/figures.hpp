// Figures: latency and bandwidth of a way to memory, as rated, as measured, and how far apart.

#pragma once

#include "libfabricshm/shm/link_page.hpp"

namespace emu {

/// Nanoseconds and bytes per second, for one node with all of its ranks together. A bandwidth of 0
/// is unknown or not limited.
struct Figures {
    double read_latency_ns = 0;
    double write_latency_ns = 0;
    double read_bandwidth = 0;
    double write_bandwidth = 0;
};

/// What `links` stand for: latency of the way, bandwidth of its narrowest stretch. Slow motion is
/// taken out, so that the figures are those of the machine that is emulated.
Figures rated_figures(const fabricshm::LinkImage& links, int node);

/// In real time, as this machine has to show them: latencies longer and bandwidths smaller by slow
/// motion.
Figures slowed(const Figures& figures, double slow_motion);

/// By how much `measured` misses `rated`, in per cent of `rated`; 0 where nothing is rated.
double error_percent(double measured, double rated);

/// The largest of the four errors, without sign. Figures that this machine has by itself (rated 0)
/// do not count.
double worst_error_percent(const Figures& measured, const Figures& rated);

/// Whether a machine whose own figures are `own` can show `rated` by waiting: it may be faster in
/// everything, and slower in nothing.
struct Reach {
    bool read_latency = true;
    bool write_latency = true;
    bool read_bandwidth = true;
    bool write_bandwidth = true;
    bool all() const noexcept {
        return read_latency && write_latency && read_bandwidth && write_bandwidth;
    }
};
Reach reach_of(const Figures& own, const Figures& rated);

/// The least slow motion with which all of `rated` is within reach.
int slow_motion_for(const Figures& own, const Figures& rated);

}  // namespace emu
