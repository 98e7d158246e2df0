// Sample: what was measured at one moment, of everything. docs/telemetry.md. What the control loop
// takes and the metrics show; plain data.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabricd/telemetry/device_faults.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/telemetry_page.hpp"

namespace fabricd {

/// What a session did lately: over the last second or, where its steps take longer, its last steps.
struct SessionRates {
    double steps_per_s = 0;
    double samples_per_s = 0;
    double step_s = 0;         // a step takes
    double compute_share = 0;  // of the time of steps, as the next two
    double wait_share = 0;
    double comm_share = 0;
};

/// The counters of a session at an earlier sample.
struct RatesBase {
    std::int64_t written_ns = 0;  // 0: there was none
    std::uint64_t steps = 0;
    std::uint64_t samples = 0;
    std::int64_t step_ns = 0;
    std::int64_t compute_ns = 0;
    std::int64_t wait_ns = 0;
    std::int64_t comm_ns = 0;
};

/// Which rank of which group a session is.
struct Membership {
    std::uint64_t arena_id = 0, group_id = 0;
    std::int32_t rank = -1;
    bool operator==(const Membership&) const = default;
};

/// One session that has a telemetry page. What it says of itself is in `image`, tamed but not
/// proven: a session can claim any group and any number of samples, and only its own job believes
/// it. Its identity comes from the kernel and the daemon's records.
struct SessionSample {
    std::uint64_t session_id = 0;
    std::uint64_t page_number = 0;  // a new page begins with new counters
    fabricshm::TelemetrySeen seen;  // of that page: what did not change is not copied again
    bool stale = true;              // nothing written for [telemetry] stale_after, or never
    bool member = false;            // the daemon's records say that it is this rank of this group
    Membership confirmed;           // what they were asked, and said yes to
    fabricshm::TelemetryImage image;
    std::uint64_t memory_used = 0;    // bytes of the pool, by the daemon's accounting
    std::uint64_t memory_denied = 0;  // asked for and refused so far
    SessionRates rates;
    RatesBase before;  // what the rates begin at
    /// Shards that it reads, the busiest first: of those that it reports, the ones that the
    /// daemon's records say it has open. The counts are its own word and up to 1 s old. A session
    /// that reads shards and makes no steps is stale and is right here all the same.
    std::vector<fabricshm::ShardReads> shards;
    std::int32_t pid = 0;
    std::uint32_t uid = 0;
    std::string label;
    std::string device;  // "": none
};

enum class DeviceKind { kCpu, kGpu };

/// What a device of this host does now. Negative numbers: not known.
struct DeviceSample {
    std::string name;  // "cpu0" (a package), "gpu0"
    std::string description;
    DeviceKind kind = DeviceKind::kCpu;
    int numa_node = -1;
    int units = 0;                   // processors, or multiprocessors
    double busy = -1;                // share of the time since the sample before, 0 to 1
    double memory_busy = -1;         // likewise, of the memory interface
    std::int64_t memory_total = -1;  // bytes
    std::int64_t memory_used = -1;
    double power_watts = -1;
    double temperature_c = -1;
    double clock_mhz = -1;
    bool stale = false;     // could not be asked this time: the numbers are older
    std::string uuid = {};  // "GPU-..."; "": none
    DeviceFaults faults = 0;
};

/// A device of the device file that something is wrong with.
struct FaultyDevice {
    std::string name;  // as sessions and the device file call it
    DeviceFaults faults = 0;
};

/// How fast one rank reads what another rank of its group wrote: timed reads, each of some KiB,
/// over the last of them. The record of stage S211.
struct PathSample {
    std::uint64_t group_id = 0;
    int from = 0;                      // the rank that reads
    int to = 0;                        // the rank whose memory it reads
    std::uint64_t reads = 0;           // timed so far
    double bytes_per_second = 0;       // median
    double slow_bytes_per_second = 0;  // 99 of 100 reads are faster
    double latency_ns = 0;             // of one line: median
    double latency_p99_ns = 0;
};

/// How long collectives of this host took, of all sessions that there have been since the daemon
/// started, and of none apart: so it has as many rows whether there are two sessions or thousands.
struct LatencySums {
    fabricshm::LatencyImage image{};
    std::uint64_t left_out = 0;  // reads of a row that no session can have come to
};

struct Sample {
    std::uint64_t number = 0;             // 1, 2, ...; 0: nothing was sampled yet
    std::int64_t taken_ns = 0;            // CLOCK_MONOTONIC, like TelemetryImage::written_ns
    std::int64_t cost_ns = 0;             // what taking it cost the sampler's thread
    std::vector<SessionSample> sessions;  // by id
    std::vector<DeviceSample> devices;
    std::vector<FaultyDevice> faulty;
    std::vector<PathSample> paths;
    LatencySums latencies;
};

}  // namespace fabricd
