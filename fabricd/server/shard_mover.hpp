// ShardMover: the thread that copies shards. What is copied from where to where, and what becomes
// of it, the registry says; docs/migration.md.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "fabricd/pool/shard.hpp"
#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// Copies in the order they were asked for, one at a time, in pieces of 1 MiB with stores that
/// leave the cache to those who train. The public calls are for the control thread.
class ShardMover final : public CopyWork {
  public:
    /// Takes a result to the control thread; false when that no longer listens.
    using Post = std::function<bool(std::function<void()>)>;
    using Done = std::function<void(ShardId, Result<fabricshm::ShardWord>)>;

    /// `bytes_per_second`: of copies that name no limit of their own; 0: as fast as it goes.
    ShardMover(Post post, Bytes bytes_per_second)
        : post_(std::move(post)), bytes_per_second_(bytes_per_second) {}
    ~ShardMover() override { stop(); }

    /// `done` is called on the control thread, once for each copy.
    void start(Done done);

    /// Breaks off what is being copied. What was asked for is not reported any more: a restarted
    /// daemon undoes it. Idempotent.
    void stop() noexcept;

    void copy(CopyJob job) override;

  private:
    void serve();
    Result<fabricshm::ShardWord> make(const CopyJob& job);
    Result<fabricshm::ShardWord> wait_for_owner(const CopyJob& job);
    Result<void> fill(const CopyJob& job);
    bool pause_until(TimePoint when, const CopyProgress& progress);

    const Post post_;
    const Bytes bytes_per_second_;
    Done done_;
    std::thread thread_;

    std::mutex mutex_;  // guards what follows; never held while bytes are copied
    std::condition_variable changed_;
    std::deque<CopyJob> jobs_;
    bool stopping_ = false;
};

}  // namespace fabricd
