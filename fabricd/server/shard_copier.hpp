// ShardCopier: one copy of a shard, piece by piece. docs/migration.md.

#pragma once

#include <optional>

#include "fabricd/pool/shard.hpp"
#include "fabricd/server/present_pages.hpp"
#include "fabricd/server/token_bucket.hpp"
#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// A copy under way. Each step takes a fraction of a millisecond where memory is at hand, so that
/// several can take turns and each can be broken off. For one thread.
class ShardCopier {
  public:
    using Outcome = Result<fabricshm::ShardWord>;

    ShardCopier(CopyJob job, TimePoint now);

    const CopyJob& job() const noexcept { return job_; }

    /// From when on there is something to do. A step before that does nothing.
    TimePoint due() const noexcept { return due_; }

    /// Whether it is to end.
    bool cancelled() const noexcept {
        // Relaxed: seen a piece later it is as good.
        return job_.progress->cancelled.load(std::memory_order_relaxed);
    }

    /// Looks whether the owner is done writing, pays for the next piece or copies it; `all` is what
    /// copies may take together, `pages` what they have touched. The outcome, once there is one:
    /// the word as it was before the first byte was read (should the owner have written since, the
    /// swap sees another one and the copy is worth nothing), kBusy (the owner writes), kClosed
    /// (cancelled), kPoisoned, or why there was no memory.
    std::optional<Outcome> step(TokenBucket& all, PresentPages& pages, TimePoint now);

  private:
    enum class Stage { kOwner, kOrder, kShare, kPiece };

    std::optional<Outcome> await_owner(TimePoint now);
    bool pay(TokenBucket& all, TimePoint now);
    Result<void> move_piece(PresentPages& pages);
    Bytes piece() const noexcept;

    CopyJob job_;
    TokenBucket bucket_;  // of its order
    Stage stage_ = Stage::kOwner;
    TimePoint due_;
    TimePoint timeout_;
    fabricshm::ShardWord seen_;
    Bytes done_ = 0;
};

}  // namespace fabricd
