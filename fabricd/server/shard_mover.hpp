// ShardMover: the thread that copies shards. What is copied from where to where, and what becomes
// of it, the registry says; docs/migration.md.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "fabricd/pool/shard.hpp"
#include "fabricd/server/shard_copier.hpp"
#include "fabricd/server/token_bucket.hpp"
#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// Copies piece by piece, all shards that move in turn: one that is slow by its order, or whose
/// owner writes all the time, holds up no other. The public calls are for the control thread.
class ShardMover final : public CopyWork {
  public:
    /// Takes a result to the control thread; false when that no longer listens.
    using Post = std::function<bool(std::function<void()>)>;
    using Done = std::function<void(ShardId, Result<fabricshm::ShardWord>)>;

    /// `bytes_per_second`: of all copies together, whatever their orders say; 0: as fast as it
    /// goes.
    ShardMover(Post post, Bytes bytes_per_second)
        : post_(std::move(post)), bucket_(bytes_per_second, fabricshm::Clock::now()) {}
    ~ShardMover() override { stop(); }

    /// `done` is called on the control thread, once for each copy.
    void start(Done done);

    /// Breaks off what is being copied. What was asked for is not reported any more: a restarted
    /// daemon undoes it. Idempotent.
    void stop() noexcept;

    void copy(CopyJob job) override;
    bool knows_node(int node) const override;

  private:
    void serve();
    bool take_orders();
    ShardCopier* next_due(TimePoint now);
    void advance(ShardCopier& copy);

    const Post post_;
    Done done_;
    std::thread thread_;

    // Of the thread alone.
    TokenBucket bucket_;
    PresentPages pages_;
    std::deque<ShardCopier> copies_;  // whose turn it is in front

    std::mutex mutex_;  // guards what follows; never held while bytes are copied
    std::condition_variable changed_;
    std::vector<CopyJob> orders_;
    bool stopping_ = false;
};

}  // namespace fabricd
