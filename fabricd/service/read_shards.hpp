// Shards that a session reads: the only ones that the control loop is shown.
// docs/control_reference.md.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "fabricd/pool/shard.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/telemetry/sample.hpp"

namespace fabricd {

/// Remembers which shards sessions on devices read: whose bytes rise. There may be a hundred
/// thousand shards, and a window that showed them all would cost the control thread some
/// milliseconds and the journal its history. For the loop's thread.
class ReadShards {
  public:
    static constexpr std::size_t kMaxShards = 4096;

    /// A shard is shown for `keep` windows more when no session reads it any longer: the loop may
    /// be about to judge its move, or let it rest. `pause`: so many windows may lie between two in
    /// which the bytes of a shard that is read all the time rise.
    explicit ReadShards(std::int64_t keep, std::int64_t pause = 1, std::size_t most = kMaxShards)
        : keep_(keep + pause), pause_(pause), most_(most) {}

    /// Once per window, with sessions by id. Costs one pass over what the sessions report.
    void look(const Sample& sample);

    /// A move may take longer than what is kept, and its reader may be gone meanwhile.
    void keep_moving(const Places& places);

    /// By id. At most `most`: those that were read last.
    std::vector<ShardId> ids() const;

    /// Shards of the last look, or kept, that are beyond the most.
    std::uint64_t left_out() const noexcept { return left_out_; }

  private:
    // What a session has reported of a shard.
    struct Told {
        std::uint64_t session = 0;
        ShardId shard;
        std::uint64_t bytes = 0;
    };
    bool has_risen(const Told& now, std::size_t from) const;
    void drop_beyond_max();

    std::int64_t keep_;
    std::int64_t pause_;
    std::size_t most_;
    std::int64_t look_ = 0;
    std::vector<Told> told_;                // at the last look, by session
    std::map<ShardId, std::int64_t> seen_;  // the last look that found it read
    std::uint64_t left_out_ = 0;
};

}  // namespace fabricd
