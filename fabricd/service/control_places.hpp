// What the control loop knows of places: which device reads which shard, and how the pool is
// divided among the devices. docs/control_reference.md.

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fabricd/control/journal/window.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/telemetry/sample.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// Adds shards, devices and the pool's quotas to windows. A node of S213 is a device of the device
/// file: it is what sessions say they compute on, and what a shard can be given to. For the loop's
/// thread.
class PlaceSource {
  public:
    using Ask = std::function<Places()>;

    /// `ask` is called once per window. Between two close looks at a session `look_every` passes.
    /// Devices with one of `drains` take no shards.
    explicit PlaceSource(Ask ask, fabricshm::Duration look_every = std::chrono::seconds(1),
                         DeviceFaults drains = 0)
        : ask_(std::move(ask)),
          drains_(drains),
          quiet_ns_(std::max(std::chrono::nanoseconds(kMinQuiet),
                             std::chrono::nanoseconds(3 * look_every))
                        .count()) {}

    /// Takes what the sessions count. While the sampler waits: costs one pass over the sessions.
    void look(const Sample& sample);

    /// What is known by now. Shards of owners without a device are left out: their place is no
    /// node.
    void add_to(Window& window);

  private:
    using ShardKey = std::pair<std::uint64_t, std::uint64_t>;  // arena, header's region
    using ReadKey = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;  // session, and that

    /// A counter of a session that is reported about once per second, more or less.
    struct Reads {
        std::uint64_t bytes = 0;
        std::int64_t changed_ns = 0;
        double rate = 0;          // bytes per second
        std::int64_t gap_ns = 0;  // between the last two looks that found more
        std::string device;
        bool seen = false;
    };

    /// What is known of the readers of a shard.
    struct Demand {
        std::vector<double> rates;  // bytes per second, by node
        std::vector<double> until;  // seconds until the node reads again, as far as is known
    };

    double until_next_s(const Reads& reads) const;
    void look_at_reads(const SessionSample& session, std::int64_t now_ns);
    double denied_since(const DeviceView& device);
    void look_at_paths(const Sample& sample);
    void add_shards(const Places& places, PlacementWindow& placement) const;
    void add_caches(const Places& places, Window& window);
    void add_bandwidth(const Places& places, PlacementWindow& placement) const;

    static constexpr std::chrono::seconds kMinQuiet{3};

    Ask ask_;
    DeviceFaults drains_;
    std::set<std::string> faulty_;
    std::int64_t now_ns_ = 0;  // of the last look
    std::int64_t quiet_ns_;    // a counter that did not change for so long stands still
    std::map<ReadKey, Reads> reads_;
    std::map<std::string, std::uint64_t> denied_;  // by device, until the last window
    std::map<std::string, CacheView> caches_;      // likewise
    std::optional<PoolDemand> demand_;             // likewise
    std::map<std::pair<std::string, std::string>, double> paths_;  // bytes/s, from and to a device
};

}  // namespace fabricd
