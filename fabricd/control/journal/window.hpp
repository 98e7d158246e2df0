// Window: what happened between two looks of the control loop, as differences. The loop's only
// input, and what the decision journal keeps, so that a replay sees what the loop saw.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabricd/telemetry/sample.hpp"

namespace fabricd {

/// One rank of a job. Sums over the steps that ended in the window.
struct RankWindow {
    std::uint64_t session = 0;
    std::int32_t rank = -1;
    bool stale = false;  // its page is too old to be believed
    double steps = 0;
    double samples = 0;
    double step_s = 0, compute_s = 0, wait_s = 0, comm_s = 0;
    double bytes = 0;                                            // to and from peers
    double loss = 0, gradient_norm = 0, mean_gradient_norm = 0;  // last; NaN: not given
    double memory_used = 0;
    double memory_denied = 0;  // in the window
    std::uint32_t queue = 0, batch = 0;
    std::uint32_t sync_interval = 0;     // in force
    std::uint64_t directive_serial = 0;  // in force
    DeviceFaults faults = 0;             // of the device that it computes on
};

/// The ranks of one group that train together.
struct JobWindow {
    std::uint64_t arena = 0, group = 0;
    std::int32_t world = 0;
    std::vector<RankWindow> ranks;  // by rank; only those that have a page

    /// Every rank is there, once, in its place. The registry confirms each rank and not how many
    /// there are: that is what rank 0 says, and ranks 0, 2, 5 of "3" must not be taken for 0, 1, 2.
    bool is_whole() const noexcept;
};

/// A vGPU or a device of the device file: what holds memory of a device that several share.
struct QuotaWindow {
    std::string name;
    double quota = 0, used = 0, denied = 0;  // bytes; denied in the window
    double speed = 1;                        // against the mean; of a device: GFLOP/s
    double delay = 0;                        // held up for longer than the median: so much more
    double busy = 0;                         // part of the time in which others keep the GPU busy
    double usage = 0;                        // part of the time in which this one does
    double priority = 1;
    std::uint64_t percent = 0;    // compute share in force; 0: it is not known how it is used
    double promised = 0;          // bytes that are its own; 0: what its quota is when first seen
    double promised_percent = 0;  // of compute; likewise
    double held_up = 0;           // part of the window in which a launch waited for compute time
};
struct QuotaDevice {
    std::string name;
    double memory = 0, reserve = 0;
    std::vector<QuotaWindow> users;
};

/// Data that may live elsewhere.
struct ShardWindow {
    std::uint64_t id = 0;  // the region of its header
    double bytes = 0;
    double until_needed_s = 0;
    std::uint32_t home = 0;
    std::vector<double> reads;  // bytes per second by each node
    std::string name = {};      // "ARENA/NAME": what a decision is about
    bool moving = false;        // a move is under way, or its old copy is still read
};
struct NodeWindow {
    std::string name;
    double speed = 0, free_bytes = 0;
};
struct PlacementWindow {
    std::vector<NodeWindow> nodes;
    std::vector<double> bandwidth;  // bytes per second from row to column; 0: not known
    std::vector<ShardWindow> shards;
    std::uint64_t left_out = 0;  // shards beyond the most; for the metrics, not journalled
};

/// The pool, divided among the devices of the device file.
struct PoolWindow {
    std::vector<QuotaWindow> devices;
    std::vector<double> most;  // bytes that each could have: its memory
};

/// A cache that gives memory of the pool to jobs and gets it back; figures of the window.
struct CacheWindow {
    std::string name;
    double size = 0;       // bytes that it could use
    double quota = 0;      // that it may have
    double committed = 0;  // that it has
    double floor = 0;      // that it can't do without
    double stall_s = 0;    // that its readers waited, all of them together
    double refetched = 0;  // bytes that it fetched and had had before
    double near = 0;       // of them: a quarter more memory would still have had them
    double readers = 0;
};
struct CacheRoomWindow {
    std::vector<CacheWindow> caches;
    double length_s = 0;  // the window's
    double capacity = 0;  // of the pool
    double used = 0;      // of it, the caches' own included
    double lacked = 0;    // bytes that requests had to wait for, or were refused
};

struct Window {
    std::uint64_t number = 0;   // 1, 2, ...
    std::int64_t taken_ns = 0;  // CLOCK_MONOTONIC
    double length_s = 0;        // since the one before; 0: the first
    std::vector<JobWindow> jobs;
    std::vector<QuotaDevice> devices;
    PlacementWindow placement;
    PoolWindow pool;
    CacheRoomWindow room;
};

/// Makes windows of samples: takes the counters of each page apart. For one thread. Costs one pass
/// over the sessions, which come by id.
class WindowMaker {
  public:
    /// The window from the sample before to this one. A session whose page is new, or whose
    /// counters fell (a hostile or restarted client), starts again and has made no steps.
    Window next(const Sample& sample);

  private:
    struct Before {
        std::uint64_t session = 0;
        std::uint64_t page = 0;
        std::uint64_t arena = 0, group = 0;
        std::uint64_t steps = 0, samples = 0, denied = 0, bytes = 0;
        std::int64_t step_ns = 0, compute_ns = 0, wait_ns = 0, comm_ns = 0;
    };
    static Before counters_of(const SessionSample& session);

    std::vector<Before> before_;  // by session id
    std::int64_t taken_ns_ = 0;
    std::uint64_t number_ = 0;
};

}  // namespace fabricd
