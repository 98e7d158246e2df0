// ShardMeters: how often this session has read which shard. docs/telemetry.md.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/telemetry_page.hpp"

namespace fabricshm {

/// What was read of one shard through any of its handles. Threads that read one shard share its
/// pins already; this line is a second one of that kind.
struct alignas(kCacheLine) ShardMeter {
    std::atomic<std::uint64_t> reads{0};
    std::atomic<std::uint64_t> bytes{0};

    void count(Bytes length) noexcept {
        // Relaxed: nothing is ordered by them, and a sample between the two is off by one read.
        reads.fetch_add(1, std::memory_order_relaxed);
        bytes.fetch_add(length, std::memory_order_relaxed);
    }
};

/// The meters of a session. Not thread-safe, but for the counting itself.
class ShardMeters {
  public:
    /// The shard's meter, counting on where another handle of it left off.
    std::shared_ptr<ShardMeter> add(std::uint64_t arena, std::uint64_t shard);

    /// Puts the shards that were read most, lately, in front of `reported`, and forgets those that
    /// no handle has open and that are not among them. A call is about 0.1 s after the one before.
    void tell(ShardReads (&reported)[kShardsTold]) noexcept;

    std::size_t size() const noexcept { return meters_.size(); }

  private:
    using Key = std::pair<std::uint64_t, std::uint64_t>;

    struct Entry {
        std::shared_ptr<ShardMeter> meter;
        std::uint64_t last = 0;  // bytes, at the last report
        double heat = 0;         // bytes, of which each call forgets an eighth
        bool told = false;       // by the last call
    };

    // By arena and the region of the header. The daemon gives a region's number to another shard
    // after a while: its reads are then added to those of its predecessor, which does no harm,
    // since only differences count.
    std::map<Key, Entry> meters_;
};

}  // namespace fabricshm
