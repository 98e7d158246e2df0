// ShardWatch: how much each node really reads of each shard, so that placement (S213) does not
// follow every whim of a window.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/window.hpp"
#include "fabricd/control/stages/smoothing.hpp"

namespace fabricd {

/// For one thread.
class ShardWatch {
  public:
    /// Takes a window. What it gives back has smoothed reads, and only the shards that may be moved
    /// now: known for control.imbalance_windows in a row, and at rest for control.cool_down windows
    /// since the last move, whatever ordered it: two readers of one shard would otherwise take it
    /// from each other for ever.
    PlacementWindow update(const PlacementWindow& window, const ControlConfig& config,
                           double weight);

    /// Its move was refused, or came to nothing: it rests for `cool_down` windows, twice as long
    /// after each further time in a row (at most 16 times). Nothing for one that is not known.
    void refuse(const std::string& shard, std::int64_t cool_down);

    /// Those of `ready` whose last move was not refused. They are asked first: any number of small
    /// shards that can't move would otherwise stand before one that can, smallest first.
    PlacementWindow without_refused(const PlacementWindow& ready) const;

  private:
    struct Memory {
        std::vector<Ewma> reads;  // by node
        std::uint32_t home = 0;
        std::int64_t rests = 0;  // windows more
        int refusals = 0;        // in a row
        std::uint64_t seen = 0;  // the last look that found it
    };
    static bool is_known(const Memory& memory, std::int64_t windows);

    std::vector<std::string> nodes_;
    std::map<std::string, Memory> shards_;  // by name
    std::uint64_t look_ = 0;
};

}  // namespace fabricd
